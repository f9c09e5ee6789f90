-- Cancel by filter, in chunks that read a bounded number of rows.
--
-- Single tasks are found by id, batch or owner through the index of that column; those of a type or queue through its
-- lanes, and among the scheduled and running ones; for labels alone all live tasks are read, the oldest first. Then
-- come the jobs of several tasks. A chunk ends when it has found p_limit jobs or read p_max_scanned rows, and says
-- where the next one continues.

-- List the indexes in which jobs that match a filter are found, in the lock order of leases/leases.sql: single tasks,
-- then jobs.
create or replace function holdfast.list_indexes_for_cancel_filter(p_filter jsonb, p_owner text) returns text[]
language plpgsql immutable set search_path = '' as $$
begin
  return case when p_owner is null and p_filter ?| '{type,queue}' and not p_filter ?| '{batch,ids}'
    then '{ready,scheduled,running,jobs}'::text[]
    else '{tasks,jobs}'::text[] end;
end $$;

-- Open a cursor on single tasks: rows of (id, matches, lane, pos, at). The last row that was read says where to
-- continue. Every index is ordered as the cursor is, so that a cursor that is closed early has read no more than it
-- returned.
create or replace function holdfast.open_cancel_task_cursor(p_source text, p_filter jsonb, p_owner text, p_from jsonb)
  returns refcursor
language plpgsql set search_path = '' set jit = off set plan_cache_mode = force_custom_plan set enable_seqscan = off
  set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  v_cursor refcursor;
  v_labels jsonb := p_filter -> 'labels';
  v_after uuid := coalesce((p_from ->> 'id')::uuid, '00000000-0000-0000-0000-000000000000');
  v_lane bigint := coalesce((p_from ->> 'lane')::bigint, 0);
  v_pos bigint := coalesce((p_from ->> 'pos')::bigint, -1);
  v_at timestamptz := coalesce((p_from ->> 'at')::timestamptz, '-infinity');
  v_lanes bigint[] := case when p_filter ?| '{type,queue}' then array(select l.id from holdfast.lanes l
    where (not p_filter ? 'type' or l.type = p_filter ->> 'type') and (not p_filter ? 'queue'
      or l.queue = p_filter ->> 'queue')
    order by l.id) end;
begin
  if p_source = 'ready' then
    open v_cursor for select t.id, t.job_id is null and (v_labels is null or t.labels @> v_labels), l.id, t.pos,
      null::timestamptz
      from unnest(v_lanes) as l (id) cross join lateral (
        select t.id, t.job_id, t.labels, t.pos from holdfast.tasks t
        where t.lane_id = l.id and t.status = 'ready' and t.pos > case when l.id = v_lane then v_pos else -1 end
        order by t.pos offset 0) as t
      where l.id >= v_lane;
  elsif p_source = 'scheduled' then
    open v_cursor for select t.id, t.job_id is null and t.lane_id = any (v_lanes)
      and (v_labels is null or t.labels @> v_labels),
        null::bigint, null::bigint, t.due_at
      from holdfast.tasks t where t.status = 'scheduled' and t.due_at >= v_at and (t.due_at, t.id) > (v_at, v_after)
      order by t.due_at, t.id;
  elsif p_source = 'running' then
    open v_cursor for with running as materialized (select t.* from holdfast.tasks t where t.status = 'running')
      select t.id, t.job_id is null and t.lane_id = any (v_lanes) and (v_labels is null or t.labels @> v_labels),
        null::bigint, null::bigint, null::timestamptz
      from running t where t.id > v_after order by t.id;
  elsif p_filter ? 'batch' then
    -- In no order: jobs that were cancelled are not found again.
    open v_cursor for select t.id, (p_owner is null or t.owner = p_owner)
      and (v_lanes is null or t.lane_id = any (v_lanes))
        and (v_labels is null or t.labels @> v_labels) and (not p_filter ? 'ids' or p_filter -> 'ids' ? t.id::text),
        null::bigint, null::bigint, null::timestamptz
      from holdfast.tasks t where t.batch_id = (p_filter ->> 'batch')::uuid and t.job_id is null;
  elsif p_filter ? 'ids' then
    open v_cursor for select t.id, (p_owner is null or t.owner = p_owner)
      and (v_lanes is null or t.lane_id = any (v_lanes))
        and (v_labels is null or t.labels @> v_labels), null::bigint, null::bigint, null::timestamptz
      from holdfast.tasks t where t.id = any (array(select i::uuid
        from jsonb_array_elements_text(p_filter -> 'ids') as i))
        and t.job_id is null and t.id > v_after order by t.id;
  elsif p_owner is not null then
    open v_cursor for select t.id, (v_lanes is null or t.lane_id = any (v_lanes))
      and (v_labels is null or t.labels @> v_labels),
        null::bigint, null::bigint, null::timestamptz
      from holdfast.tasks t where t.owner = p_owner and t.job_id is null and t.id > v_after order by t.id;
  else
    open v_cursor for select t.id, t.job_id is null and t.labels @> v_labels, null::bigint, null::bigint,
      null::timestamptz
      from holdfast.tasks t where t.id > v_after order by t.id;
  end if;
  return v_cursor;
end $$;

-- Open a cursor on jobs of several tasks that match a filter, with the same columns as open_cancel_task_cursor.
create or replace function holdfast.open_cursor_on_jobs_to_cancel(p_filter jsonb, p_owner text, p_from jsonb) returns refcursor
language plpgsql set search_path = '' set jit = off set plan_cache_mode = force_custom_plan set enable_seqscan = off
  set enable_bitmapscan = off as $$
declare
  v_cursor refcursor;
  v_after uuid := coalesce((p_from ->> 'id')::uuid, '00000000-0000-0000-0000-000000000000');
  v_ids uuid[] := case when p_filter ? 'ids' then array(select i::uuid
    from jsonb_array_elements_text(p_filter -> 'ids') as i) end;
  v_batch uuid := (p_filter ->> 'batch')::uuid;
begin
  open v_cursor for select j.id, (not p_filter ? 'type' or j.type = p_filter ->> 'type')
      and (not p_filter ? 'labels' or j.labels @> (p_filter -> 'labels'))
      and (not p_filter ? 'queue' or exists (select from holdfast.tasks t join holdfast.lanes l on l.id = t.lane_id
        where t.job_id = j.id and l.queue = p_filter ->> 'queue')), null::bigint, null::bigint, null::timestamptz
    from holdfast.jobs j where j.finished_at is null and (p_owner is null or j.owner = p_owner)
      and (v_batch is null or j.batch_id = v_batch) and (v_ids is null or j.id = any (v_ids))
        and (v_batch is not null or j.id > v_after)
    order by case when v_batch is null then j.id end;
  return v_cursor;
end $$;

-- Read one index for jobs to cancel. Return the ids that match, the number of rows that were read, and where to
-- continue (null: at the end).
create or replace function holdfast.find_jobs_to_cancel(p_source text, p_filter jsonb, p_owner text, p_from jsonb,
  p_limit integer, p_max_scanned integer,
  out ids uuid[], out rows_read integer, out next jsonb)
language plpgsql set search_path = '' as $$
declare
  v_cursor refcursor := case p_source when 'jobs' then holdfast.open_cursor_on_jobs_to_cancel(p_filter, p_owner, p_from)
    else holdfast.open_cancel_task_cursor(p_source, p_filter, p_owner, p_from) end;
  v_id uuid;
  v_matches boolean;
  v_lane bigint;
  v_pos bigint;
  v_at timestamptz;
begin
  ids := '{}';
  rows_read := 0;
  loop
    fetch v_cursor into v_id, v_matches, v_lane, v_pos, v_at;
    exit when not found;
    rows_read := rows_read + 1;
    if v_matches then
      ids := ids || v_id;
    end if;
    -- The members of a batch have no order to continue in, and are no more than the batch has.
    if cardinality(ids) >= p_limit or (rows_read >= p_max_scanned and not p_filter ? 'batch') then
      next := jsonb_strip_nulls(jsonb_build_object('source', p_source, 'id', v_id, 'lane', v_lane, 'pos', v_pos, 'at',
        v_at));
      exit;
    end if;
  end loop;
  close v_cursor;
end $$;

-- Cancel one chunk of the jobs that match a filter. Return {cancelled, next}. Pass `next` as p_from of the next call;
-- null means that all rows were read.
create or replace function holdfast.cancel_jobs_chunk(
  p_filter jsonb, p_reason text default null, p_limit integer default 1000, p_from jsonb default null,
    p_max_scanned integer default 100000)
returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_user text := holdfast.get_end_user_id();
  v_owner text := coalesce(v_user, p_filter ->> 'owner');
  v_sources text[] := holdfast.list_indexes_for_cancel_filter(p_filter, v_owner);
  v_limit integer := least(greatest(coalesce(p_limit, 1000), 1), 100000);
  v_left integer := least(greatest(coalesce(p_max_scanned, 100000), 1), 1000000);
  v_from jsonb := nullif(p_from, 'null');
  v_matching record;
  v_singles uuid[] := '{}';
  v_jobs uuid[] := '{}';
  v_count integer := 0;
  v_id uuid;
begin
  if p_filter is null or not p_filter ?| '{owner,type,queue,labels,batch,ids}' then
    perform holdfast.raise_error('HF004', 'The filter is empty.', 'filter',
      'Set owner, type, queue, labels, batch or ids.');
  end if;
  if v_user <> p_filter ->> 'owner' then
    return '{"cancelled": 0, "next": null}';
  end if;
  for v_n in coalesce(array_position(v_sources, v_from ->> 'source'), 1) .. cardinality(v_sources) loop
    if v_limit <= cardinality(v_singles) or v_left <= 0 then
      v_from := jsonb_build_object('source', v_sources[v_n]);
      exit;
    end if;
    select * into v_matching from holdfast.find_jobs_to_cancel(v_sources[v_n], p_filter, v_owner, v_from,
      v_limit - cardinality(v_singles),
      -- reads the tasks of each job
      case when v_sources[v_n] = 'jobs' and p_filter ? 'queue' then greatest(v_left / 10, 1) else v_left end);
    if v_sources[v_n] = 'jobs' then
      v_jobs := v_matching.ids;
    else
      v_singles := v_singles || v_matching.ids;
    end if;
    v_left := v_left - v_matching.rows_read;
    v_from := v_matching.next;
    exit when v_from is not null;
  end loop;
  for v_id in select i from unnest(v_singles) as i order by i loop
    v_count := v_count + holdfast.cancel_job_if_live(v_id, p_reason, holdfast.now())::int;
  end loop;
  for v_id in select i from unnest(v_jobs) as i order by i loop
    v_count := v_count + holdfast.cancel_job_if_live(v_id, p_reason, holdfast.now())::int;
  end loop;
  return jsonb_build_object('cancelled', v_count, 'next', v_from);
end $$;

call holdfast.grant_execute('holdfast_worker', 'cancel_jobs_chunk');
call holdfast.grant_execute('service_role', 'cancel_jobs_chunk');
call holdfast.grant_execute('authenticated', 'cancel_jobs_chunk');
