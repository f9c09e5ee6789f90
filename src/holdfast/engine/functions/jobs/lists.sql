-- Lists of jobs, newest first, without their tasks. Filter: {owner, status, type, queue, labels}.
--
-- Owners and statuses have indexes. For the other conditions, a bounded number of the newest rows that these leave is
-- read in each of the three tables where jobs are. A page ends where the first of these scans ends, and the next page
-- begins there. So a page may be short or empty and not be the last: `next` tells.

-- Find the ids of jobs that match a filter, newest first, at most p_limit + 1. `floor` is the id below which not every
-- row was read; null if no scan had to stop.
create or replace function holdfast.find_filtered_job_ids(p_filter jsonb, p_before uuid, p_limit integer,
  p_max_scanned integer,
  out ids uuid[], out floor uuid)
language plpgsql stable set search_path = '' set jit = off set plan_cache_mode = force_custom_plan as $$
declare
  v_owner text := coalesce(holdfast.get_end_user_id(), p_filter ->> 'owner');
  v_status text := p_filter ->> 'status';
  v_type text := p_filter ->> 'type';
  v_queue text := p_filter ->> 'queue';
  v_labels jsonb := p_filter -> 'labels';
  v_has_filter boolean := p_filter ?| '{type,queue,labels}';
  v_scan integer := case when v_has_filter then p_max_scanned else p_limit + 1 end;
  -- The queues of a job of several tasks are scanned up for each job, in every day of the history.
  v_job_scan integer := case when not v_has_filter then p_limit + 1 when v_queue is null
    then greatest(p_max_scanned / 10, 1)
    else greatest(p_max_scanned / 100, 1) end;
  v_policies bigint[] := case when v_type is not null or v_queue is not null
    then array(select k.id from holdfast.task_policies k
    where (v_type is null or k.type = v_type) and (v_queue is null or k.queue = v_queue)) end;
  v_lanes bigint[] := case when v_policies is not null then array(select l.id from holdfast.lanes l
    where l.policy_id = any (v_policies)) end;
  v_queue_policies bigint[] := case when v_queue is not null then array(select k.id from holdfast.task_policies k
    where k.queue = v_queue) end;
begin
  with several as (
    select s.id, s.matches, s.n = v_job_scan as last from (
      select j.id, row_number() over (order by j.id desc) as n, (v_type is null or j.type = v_type)
        and (v_labels is null or j.labels @> v_labels) and (v_queue_policies is null
          or holdfast.job_has_task_policy(j.id, v_queue_policies)) as matches
      from (
        select j.id, j.type, j.labels from holdfast.jobs j
        where j.id < p_before and (v_owner is null or j.owner = v_owner) and (v_status is null or j.status = v_status)
        order by j.id desc limit v_job_scan) as j) as s
    where s.matches or s.n = v_job_scan order by s.id desc limit p_limit + 1
  ), alive as (
    select s.id, s.matches, s.n = v_scan as last from (
      select t.id, row_number() over (order by t.id desc) as n,
        (v_labels is null or t.labels @> v_labels) and (v_lanes is null or t.lane_id = any (v_lanes)) as matches
      from (
        select t.id, t.lane_id, t.labels from holdfast.tasks t
        where t.id < p_before and t.job_id is null and (v_owner is null or t.owner = v_owner)
          and (v_status is null or v_status in ('queued', 'running'))
          and (v_status is distinct from 'running' or t.status = 'running')
          and (v_status is distinct from 'queued' or t.status in ('waiting', 'scheduled', 'ready'))
        order by t.id desc limit v_scan) as t) as s
    where s.matches or s.n = v_scan order by s.id desc limit p_limit + 1
  ), ended as (
    select s.id, s.matches, s.n = v_scan as last from (
      select h.id, row_number() over (order by h.id desc) as n,
        (v_labels is null or h.labels @> v_labels) and (v_policies is null or h.policy_id = any (v_policies)) as matches
      from (
        select h.id, h.policy_id, h.labels from holdfast.history h
        where h.id < p_before and h.job_id is null and (v_owner is null or h.owner = v_owner)
          and (v_status is null or h.status = v_status) and (v_status is null or v_status not in ('queued', 'running'))
        order by h.id desc limit v_scan) as h) as s
    where s.matches or s.n = v_scan order by s.id desc limit p_limit + 1
  ), scanned as materialized (
    select * from several union all select * from alive union all select * from ended
  ), bottom as materialized (
    -- PostgreSQL has no max() for ids before 18.
    select k.id from scanned k where k.last and v_has_filter order by k.id desc limit 1
  )
  select array(select distinct k.id from scanned k where k.matches
      and k.id >= coalesce((select b.id from bottom b), '00000000-0000-0000-0000-000000000000') order by k.id desc
        limit p_limit + 1),
    (select b.id from bottom b)
  into ids, floor;
end $$;

-- Return a page of jobs: {rows, next, truncated}. Pass `next` as p_before of the next page; null at the end.
-- `truncated` says that this page stopped after reading p_max_scanned rows, before it was full.
create or replace function holdfast.list_jobs_page(
  p_filter jsonb default '{}', p_before uuid default null, p_limit integer default 50,
    p_max_scanned integer default 100000)
    returns jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
declare
  v_limit integer := least(greatest(coalesce(p_limit, 50), 1), 1000);
  v_page record;
  v_more boolean;
  v_rows jsonb;
begin
  select * into v_page from holdfast.find_filtered_job_ids(coalesce(p_filter, '{}'),
    coalesce(p_before, 'ffffffff-ffff-ffff-ffff-ffffffffffff'), v_limit,
    least(greatest(coalesce(p_max_scanned, 100000), 100), 1000000));
  v_more := cardinality(v_page.ids) > v_limit;
  v_rows := holdfast.jobs_to_json(v_page.ids[1 : v_limit]);
  if holdfast.get_end_user_id() is not null then
    v_rows := (select coalesce(jsonb_agg(holdfast.redact_job(r.body) order by r.n), '[]')
      from jsonb_array_elements(v_rows) with ordinality as r (body, n));
  end if;
  return jsonb_build_object('rows', v_rows,
    'next', case when v_more then v_page.ids[v_limit] else v_page.floor end, 'truncated', not v_more
      and v_page.floor is not null);
end $$;

-- Return jobs by id as a JSON array, newest first.
create or replace function holdfast.jobs_to_json(p_ids uuid[]) returns jsonb
language plpgsql stable set search_path = '' set jit = off as $$
begin
  return (
    select coalesce(jsonb_agg(f.body order by f.id desc), '[]') from (
      select j.id, holdfast.job_to_json(j) as body from holdfast.jobs j where j.id = any (p_ids)
      union all
      select t.id, holdfast.single_task_to_job_json(t) from holdfast.all_tasks t where t.id = any (p_ids) and t.single
    ) as f);
end $$;

-- List jobs that match a filter, newest first. p_before is the last id of the previous page. The rows do not tell
-- whether the scan stopped early; list_jobs_page does.
create or replace function holdfast.list_jobs(p_filter jsonb default '{}', p_before uuid default null,
  p_limit integer default 50)
returns setof jsonb
language plpgsql stable security definer set search_path = '' as $$
declare
  v_page jsonb := holdfast.list_jobs_page(p_filter, p_before, p_limit);
begin
  if (v_page -> 'truncated')::boolean then
    raise notice 'Jobs older than % were not read.',
      v_page ->> 'next' using hint = 'Use holdfast.list_jobs_page, which returns where to continue.';
  end if;
  return query select r.body from jsonb_array_elements(v_page -> 'rows') with ordinality as r (body, n) order by r.n;
end $$;

-- Find jobs by the short form of their id: its first and its last hexadecimal digits. Either may be empty. The first
-- digits are the time, so jobs of the same minute share them; the last ones are random. Without first digits, the
-- newest 100,000 jobs of each table are read.
create or replace function holdfast.find_jobs_by_short_id(p_first text, p_last text, p_limit integer default 10)
returns setof uuid
language plpgsql stable security definer set search_path = '' set jit = off as $$
declare
  v_user text := holdfast.get_end_user_id();
  v_first text := replace(lower(p_first), '-', '');
  v_last text := replace(lower(p_last), '-', '');
  v_from uuid;
  v_to uuid;
  v_max_rows integer;
begin
  if v_first !~ '^[0-9a-f]{0,32}$' or v_last !~ '^[0-9a-f]{0,32}$' or length(v_first) + length(v_last) < 4 then
    return;
  end if;
  v_from := rpad(v_first, 32, '0')::uuid;
  v_to := rpad(v_first, 32, 'f')::uuid;
  v_max_rows := case when v_last = '' then p_limit else 100000 end;
  return query
  select distinct f.id from (
    (select j.id from holdfast.jobs j where j.id between v_from and v_to and (v_user is null or j.owner = v_user)
      order by j.id desc limit v_max_rows)
    union all
    (select t.id from holdfast.tasks t where t.id between v_from and v_to and t.job_id is null
      and (v_user is null or t.owner = v_user) order by t.id desc limit v_max_rows)
    union all
    (select h.id from holdfast.history h where h.id between v_from and v_to and h.job_id is null
      and (v_user is null or h.owner = v_user) order by h.id desc limit v_max_rows)
  ) as f where right(replace(f.id::text, '-', ''), length(v_last)) = v_last order by f.id limit p_limit;
end $$;

-- Find jobs whose id begins with these hexadecimal digits.
create or replace function holdfast.find_jobs_by_id_prefix(p_prefix text, p_limit integer default 10) returns setof uuid
language sql stable security definer set search_path = '' as $$
  select holdfast.find_jobs_by_short_id(p_prefix, '', p_limit);
$$;

call holdfast.grant_execute('holdfast_worker', 'list_jobs', 'list_jobs_page', 'find_jobs_by_id_prefix',
  'find_jobs_by_short_id');
call holdfast.grant_execute('service_role', 'list_jobs', 'list_jobs_page', 'find_jobs_by_id_prefix',
  'find_jobs_by_short_id');
call holdfast.grant_execute('authenticated', 'list_jobs', 'list_jobs_page');
