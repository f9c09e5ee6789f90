-- Bulk actions: one action on many jobs, as a row that you can watch, pause, stop and undo.
--
-- The jobs are selected and stored once, at the start. Jobs that match later are not included. A retry runs in stages
-- (column `stage`): ten jobs, then a hundred, then the rest. A stage starts when the previous one has ended, or after
-- ten minutes. The action stops by itself when too many jobs fail again. A cancel has no stages. `advance_bulk_actions`
-- runs the next step of every running action in a bounded transaction. Workers call it after a notification, `tick`
-- calls it, and a dashboard may.

-- Return the query restricted to the states that the action can change, unless the query names states itself.
create or replace function holdfast.restrict_query_to_changeable_jobs(p_verb text, p_query jsonb) returns jsonb
language plpgsql immutable set search_path = '' as $$
begin
  if p_verb is null or p_verb not in ('retry', 'cancel') then
    perform holdfast.raise_error('HF004', format('Invalid bulk action %s.', quote_nullable(p_verb)), 'verb',
      'Use retry or cancel.');
  end if;
  return case when p_query #> '{state,in}' is not null then p_query
    else p_query || jsonb_build_object('state', coalesce(p_query -> 'state', '{}') || case p_verb
      when 'retry' then '{"in": ["failed", "partial", "cancelled"]}'::jsonb else '{"in": ["alive"]}'::jsonb end) end;
end $$;

-- Count the jobs that the action would affect, as count_jobs does: exactly up to 10,000, otherwise as an estimate, so
-- that a preview answers at once.
create or replace function holdfast.preview_bulk_action(p_verb text, p_query jsonb) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
begin
  return holdfast.count_jobs(holdfast.restrict_query_to_changeable_jobs(p_verb, p_query));
end $$;

-- Start a bulk action on all jobs that match the query, and return its id. Options: {stage_sizes: [10, 100],
-- max_jobs_per_s, max_failed_share, limit}.
create or replace function holdfast.start_bulk_action(
  p_verb text, p_query jsonb, p_search text, p_by text, p_reason text, p_options jsonb default '{}') returns uuid
language plpgsql security definer set search_path = '' as $$
declare
  v_id uuid := holdfast.new_id();
  v_query jsonb := holdfast.restrict_query_to_changeable_jobs(p_verb, p_query);
  v_max_rows integer := coalesce(holdfast.parse_number_field(p_options, 'limit', 1, 100000), 100000);
  v_total bigint;
begin
  if coalesce(btrim(p_reason), '') = '' then
    perform holdfast.raise_error('HF004', 'A bulk action needs a reason.', 'reason',
      'Pass a reason; the audit log shows it.');
  end if;
  insert into holdfast.bulk_actions (id, verb, search, owner, started_by, reason, total, created_at, max_jobs_per_s,
    max_failed_share,
    stage_sizes)
  values (v_id, p_verb, left(p_search, 4000), p_query #>> '{owner,in,0}', coalesce(p_by, session_user),
    left(p_reason, 1000), 0, holdfast.now(),
    holdfast.parse_number_field(p_options, 'max_jobs_per_s', 0.001, 1000000),
      coalesce(holdfast.parse_number_field(p_options, 'max_failed_share', 0, 1), 0.2),
    case when p_verb = 'cancel' then '{}' when jsonb_typeof(p_options -> 'stage_sizes') = 'array' then array(
      select greatest(1, r::numeric)::int from jsonb_array_elements_text(p_options -> 'stage_sizes') as r limit 10)
        else '{10,100}' end);
  insert into holdfast.bulk_action_jobs (bulk_id, job_id)
  select v_id, i from holdfast.search_job_ids(v_query, null, null, v_max_rows, 1000000) as i;
  get diagnostics v_total = row_count;
  update holdfast.bulk_actions b set total = v_total,
    status = case when v_total = 0 then 'done' else b.status end,
      finished_at = case when v_total = 0 then b.created_at end
  where b.id = v_id;
  perform pg_notify('holdfast', 'maintenance');
  return v_id;
end $$;

-- Count what became of the jobs of a stage, or of all stages when p_stage is null: outcome known, failed again, still
-- pending. Read the newest p_max_rows jobs.
create or replace function holdfast.count_bulk_action_outcomes(p_id uuid, p_stage integer, p_max_rows integer,
  out known bigint, out failed_again bigint, out pending bigint)
language plpgsql stable set search_path = '' set jit = off as $$
begin
  select count(*) filter (where f.status in ('succeeded', 'failed', 'partial', 'cancelled') or f.failing),
    count(*) filter (where f.status in ('failed', 'partial') or f.failing),
      count(*) filter (where f.status in ('queued', 'running') and not f.failing)
  into known, failed_again, pending
  from (
    select coalesce(j.status, holdfast.convert_task_status_to_job_status(t.status), h.status) as status,
      coalesce(t.failures + t.crashes > 0, false) or coalesce(j.failed > 0 and j.finished_at is null, false) as failing
    from (select i.job_id from holdfast.bulk_action_jobs i where i.bulk_id = p_id and i.outcome = 'done'
      and i.stage is not null
        and (p_stage is null or i.stage = p_stage) order by i.at desc limit p_max_rows) as i
    left join holdfast.jobs j on j.id = i.job_id
    left join holdfast.tasks t on t.id = i.job_id and t.job_id is null
    left join lateral (select h.status from holdfast.history h where h.id = i.job_id and h.job_id is null
      limit 1) as h on true
  ) as f;
end $$;

-- Run the next step of every running action and return how many jobs it processed. Concurrent callers do not wait.
create or replace function holdfast.advance_bulk_actions(p_limit integer default 200) returns integer
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_bulk holdfast.bulk_actions;
  v_count integer := 0;
begin
  for v_bulk in
    select * from holdfast.bulk_actions b where b.status = 'running' order by b.id limit 20 for update skip locked
  loop
    exit when v_count >= p_limit;
    v_count := v_count + holdfast.advance_bulk_action(v_bulk, v_now, p_limit - v_count);
  end loop;
  return v_count;
end $$;

-- Run the next step of one action: check the outcomes of the current stage, then process jobs.
create or replace function holdfast.advance_bulk_action(
  p_bulk holdfast.bulk_actions, p_now timestamptz, p_limit integer) returns integer
language plpgsql set search_path = '' as $$
declare
  v_ramping boolean := p_bulk.stage > 0 and p_bulk.stage <= cardinality(p_bulk.stage_sizes);
  v_left bigint := 0;
  v_outcomes record;
  v_size integer;
begin
  if v_ramping then
    -- A stage that is larger than one step continues until it is full.
    v_left := p_bulk.stage_sizes[p_bulk.stage] - (select count(*) from holdfast.bulk_action_jobs i
      where i.bulk_id = p_bulk.id
      and i.stage = p_bulk.stage);
  end if;
  if p_bulk.verb = 'retry' and p_bulk.stage > 0 and v_left <= 0 then
    select * into v_outcomes from holdfast.count_bulk_action_outcomes(
      p_bulk.id, case when v_ramping then p_bulk.stage end, 1000);
    if v_outcomes.failed_again > 0 and v_outcomes.failed_again > p_bulk.max_failed_share * greatest(
      v_outcomes.known, least(10, p_bulk.total)) then
      update holdfast.bulk_actions b set status = 'stopped', finished_at = p_now,
        failed_again = v_outcomes.failed_again,
        stop_reason = format('%s of %s failed again.', v_outcomes.failed_again, v_outcomes.known)
          where b.id = p_bulk.id;
      return 0;
    end if;
    if v_ramping and v_outcomes.pending > 0 and p_bulk.stage_started_at > p_now - interval '10 minutes' then
      update holdfast.bulk_actions b set failed_again = v_outcomes.failed_again where b.id = p_bulk.id
        and b.failed_again <> v_outcomes.failed_again;
      return 0;
    end if;
  end if;
  if p_bulk.stage_started_at > p_now then
    return 0;
  end if;
  v_size := case when v_left > 0 then v_left when p_bulk.stage < cardinality(p_bulk.stage_sizes)
    then p_bulk.stage_sizes[p_bulk.stage + 1] else p_limit end;
  return holdfast.run_bulk_action_stage(p_bulk, p_bulk.stage + (v_left <= 0
    and p_bulk.stage <= cardinality(p_bulk.stage_sizes))::int,
    least(v_size, p_limit), p_now);
end $$;

-- Retry or cancel the next p_size jobs of a bulk action: single tasks first, then others, each by id. This is the
-- lock order of leases.sql. Return the number of processed jobs.
create or replace function holdfast.run_bulk_action_stage(
  p_bulk holdfast.bulk_actions, p_stage integer, p_size integer, p_now timestamptz) returns integer
language plpgsql set search_path = '' as $$
declare
  v_one record;
  v_count integer := 0;
  v_done integer := 0;
  v_changed boolean;
begin
  for v_one in
    select i.job_id from (select i.job_id from holdfast.bulk_action_jobs i
      where i.bulk_id = p_bulk.id and i.outcome is null
      order by i.job_id limit p_size for update) as i
    order by exists (select from holdfast.jobs j where j.id = i.job_id), i.job_id
  loop
    v_changed := holdfast.apply_bulk_action_to_job(p_bulk, v_one.job_id, coalesce(v_count / p_bulk.max_jobs_per_s, 0));
    update holdfast.bulk_action_jobs i
    set outcome = case when v_changed then 'done' else 'skipped' end, stage = p_stage,
      at = p_now
    where i.bulk_id = p_bulk.id and i.job_id = v_one.job_id;
    v_done := v_done + v_changed::int;
    v_count := v_count + 1;
  end loop;
  update holdfast.bulk_actions b set stage = p_stage, done = b.done + v_done, skipped = b.skipped + v_count - v_done,
    stage_started_at = p_now + coalesce(v_count / p_bulk.max_jobs_per_s, 0) * interval '1 second',
    failed_again = (select o.failed_again from holdfast.count_bulk_action_outcomes(b.id, null, 1000) as o),
    status = case when v_count < p_size or b.done + b.skipped + v_count >= b.total then 'done' else b.status end,
    finished_at = case when v_count < p_size or b.done + b.skipped + v_count >= b.total then p_now end
  where b.id = p_bulk.id;
  return v_count;
end $$;

-- Retry or cancel one job and return whether it changed. A job that changed in the meantime, or is gone, is
-- skipped.
create or replace function holdfast.apply_bulk_action_to_job(
  p_bulk holdfast.bulk_actions, p_job uuid, p_delay_s double precision) returns boolean
language plpgsql set search_path = '' as $$
begin
  if p_bulk.verb = 'cancel' then
    return holdfast.cancel_job_if_live(p_job, format('%s (bulk, by %s)', p_bulk.reason, p_bulk.started_by),
      holdfast.now());
  end if;
  if holdfast.get_job_status(p_job) in ('failed', 'partial', 'cancelled') then
    return (holdfast.retry_job(p_job, null, p_delay_s) ->> 'restarted')::int > 0;
  end if;
  return false;
exception
  when sqlstate 'HF002' or sqlstate 'HF003' then return false;
  when others then
    if holdfast.is_temporary_error(sqlstate) then
      raise;
    end if;
    perform holdfast.record_maintenance_problem('bulk action on a job', p_job::text, sqlerrm, holdfast.now());
    return false;
end $$;

-- Pause, resume or stop a bulk action. p_verb is pause, resume or stop. Return whether the status changed.
create or replace function holdfast.control_bulk_action(p_id uuid, p_verb text) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  if not exists (select from holdfast.bulk_actions b where b.id = p_id) then
    perform holdfast.raise_error('HF002', format('Bulk action %s does not exist.', p_id), 'id');
  end if;
  case p_verb
    when 'pause' then update holdfast.bulk_actions b set status = 'paused' where b.id = p_id and b.status = 'running';
    when 'resume' then
      update holdfast.bulk_actions b set status = 'running', stop_reason = null where b.id = p_id
        and b.status = 'paused';
      if not found then -- an operator wants a stopped action to go on, so it does not stop by itself again
        update holdfast.bulk_actions b set status = 'running', stop_reason = null, finished_at = null,
          max_failed_share = 1
        where b.id = p_id and b.status = 'stopped' and b.undone = 0
          and exists (select from holdfast.bulk_action_jobs i where i.bulk_id = p_id and i.outcome is null);
      end if;
      perform pg_notify('holdfast', 'maintenance') where found;
      return found;
    when 'stop' then update holdfast.bulk_actions b set status = 'stopped', finished_at = holdfast.now(
      ), stop_reason = 'Stopped by an operator.'
      where b.id = p_id and b.status in ('running', 'paused');
    else perform holdfast.raise_error('HF004', format('Invalid command %s.', quote_nullable(p_verb)), 'verb',
      'Use pause, resume or stop.');
  end case;
  return found;
end $$;

-- Undo the action for jobs that have not started since: cancel retried jobs, retry cancelled ones. Stop the
-- action first. Return how many jobs it changed; call it again until it returns 0.
create or replace function holdfast.undo_bulk_action(p_id uuid, p_limit integer default 1000) returns integer
language plpgsql security definer set search_path = '' as $$
declare
  v_bulk holdfast.bulk_actions;
  v_one record;
  v_count integer := 0;
  v_changed boolean;
begin
  select * into v_bulk from holdfast.bulk_actions b where b.id = p_id for update;
  if not found then
    perform holdfast.raise_error('HF002', format('Bulk action %s does not exist.', p_id), 'id');
  end if;
  for v_one in
    select i.job_id, i.at from (select i.job_id, i.at from holdfast.bulk_action_jobs i where i.bulk_id = p_id
      and i.outcome = 'done'
      and i.stage is not null and holdfast.is_job_unchanged_since_bulk_action(v_bulk.verb, i.job_id, i.at)
        order by i.job_id
        limit p_limit) as i
    order by exists (select from holdfast.jobs j where j.id = i.job_id), i.job_id
  loop
    v_changed := case v_bulk.verb when 'retry' then holdfast.cancel_job_if_live(v_one.job_id, 'Bulk action undone.',
      holdfast.now())
      else (holdfast.retry_job(v_one.job_id) ->> 'restarted')::int > 0 end;
    if v_changed then
      update holdfast.bulk_action_jobs i set outcome = 'undone' where i.bulk_id = p_id and i.job_id = v_one.job_id;
      v_count := v_count + 1;
    end if;
  end loop;
  update holdfast.bulk_actions b set undone = b.undone + v_count, status = 'undone',
    finished_at = coalesce(b.finished_at, holdfast.now())
  where b.id = p_id;
  return v_count;
end $$;

-- Return whether a job is still as the bulk action left it: a retried job has not started, a cancelled job is still
-- cancelled.
create or replace function holdfast.is_job_unchanged_since_bulk_action(p_verb text, p_job uuid, p_at timestamptz)
  returns boolean
language plpgsql stable set search_path = '' as $$
begin
  if p_verb = 'cancel' then
    return holdfast.get_job_status(p_job) = 'cancelled';
  end if;
  return holdfast.get_job_status(p_job) = 'queued' and not exists (
    select from holdfast.tasks t where (t.id = p_job or t.job_id = p_job)
      and (t.status || '' = 'running' or t.started_at >= p_at));
end $$;

-- Return a bulk action as JSON with the outcomes of its jobs so far.
create or replace function holdfast.build_bulk_action_json(p_bulk holdfast.bulk_actions) returns jsonb
language plpgsql stable set search_path = '' as $$
begin
  return to_jsonb(p_bulk) || (select jsonb_build_object('known', o.known, 'failed_again', o.failed_again, 'pending',
    o.pending)
    from holdfast.count_bulk_action_outcomes(p_bulk.id, null, 10000) as o);
end $$;

-- Return a bulk action with its outcomes so far, or null.
create or replace function holdfast.get_bulk_action(p_id uuid) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
begin
  return (select holdfast.build_bulk_action_json(b) from holdfast.bulk_actions b where b.id = p_id);
end $$;

-- List bulk actions, newest first. p_before is the last id of the previous page.
create or replace function holdfast.list_bulk_actions(
  p_before uuid default null, p_limit integer default 50) returns setof jsonb
language plpgsql stable security definer set search_path = '' as $$
begin
  return query select to_jsonb(b) from holdfast.bulk_actions b
  where b.id < coalesce(p_before, 'ffffffff-ffff-ffff-ffff-ffffffffffff') order by b.id desc
    limit least(greatest(p_limit, 1), 1000);
end $$;

-- List the jobs of an action in the order in which they are processed. `state` is the state in lists of jobs: that of
-- the task if the job has only one.
create or replace function holdfast.list_bulk_action_jobs(
  p_id uuid, p_after uuid default null, p_limit integer default 50) returns setof jsonb
language plpgsql stable security definer set search_path = '' as $$
begin
  return query select (to_jsonb(i) - 'bulk_id') || jsonb_build_object('status', holdfast.get_job_status(i.job_id),
    'state', holdfast.build_job_rows(array[i.job_id]) #>> '{0,state}')
  from (select * from holdfast.bulk_action_jobs i where i.bulk_id = p_id
    and i.job_id > coalesce(p_after, '00000000-0000-0000-0000-000000000000')
    order by i.job_id limit least(greatest(p_limit, 1), 1000)) as i;
end $$;

call holdfast.grant_execute('holdfast_worker', 'preview_bulk_action', 'start_bulk_action', 'advance_bulk_actions',
  'control_bulk_action', 'undo_bulk_action', 'get_bulk_action', 'list_bulk_actions', 'list_bulk_action_jobs');
call holdfast.grant_execute('service_role', 'preview_bulk_action', 'start_bulk_action', 'advance_bulk_actions',
  'control_bulk_action', 'undo_bulk_action', 'get_bulk_action', 'list_bulk_actions', 'list_bulk_action_jobs');
