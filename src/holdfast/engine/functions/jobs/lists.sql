-- Lists of jobs, newest first, without their tasks. Filter: {owner, status, type, queue, labels}.
--
-- Owners and states have indexes. For the rest, the newest that these leave are looked at, a bounded number in each of the three places
-- where jobs are; a page ends where the first of these walks does, and the next one begins there. So a page may be short, or
-- empty, and not be the last: `next` tells.

-- Ids that fit, at most p_limit + 1; `floor` is the id below which not everything was looked at, null when the walks had no need to stop.
create or replace function holdfast.list_ids(p_filter jsonb, p_before uuid, p_limit integer, p_scan integer, out ids uuid[], out floor uuid)
language plpgsql stable set search_path = '' set jit = off set plan_cache_mode = force_custom_plan as $$
declare
  v_owner text := coalesce(holdfast.calling_user(), p_filter ->> 'owner');
  v_status text := p_filter ->> 'status';
  v_type text := p_filter ->> 'type';
  v_queue text := p_filter ->> 'queue';
  v_labels jsonb := p_filter -> 'labels';
  v_picks boolean := p_filter ?| '{type,queue,labels}';
  v_scan integer := case when v_picks then p_scan else p_limit + 1 end;
  -- Which queues a job of several has been in is looked up for each, in every day of the history.
  v_few integer := case when not v_picks then p_limit + 1 when v_queue is null then greatest(p_scan / 10, 1) else greatest(p_scan / 100, 1) end;
  v_kinds bigint[] := case when v_type is not null or v_queue is not null then array(select k.id from holdfast.kinds k
    where (v_type is null or k.type = v_type) and (v_queue is null or k.queue = v_queue)) end;
  v_lanes bigint[] := case when v_kinds is not null then array(select l.id from holdfast.lanes l where l.kind_id = any (v_kinds)) end;
  v_inside bigint[] := case when v_queue is not null then array(select k.id from holdfast.kinds k where k.queue = v_queue) end;
begin
  with several as (
    select s.id, s.fits, s.n = v_few as last from (
      select j.id, row_number() over (order by j.id desc) as n, (v_type is null or j.type = v_type)
        and (v_labels is null or j.labels @> v_labels) and (v_inside is null or holdfast.has_kind(j.id, v_inside)) as fits
      from (
        select j.id, j.type, j.labels from holdfast.jobs j
        where j.id < p_before and (v_owner is null or j.owner = v_owner) and (v_status is null or j.status = v_status)
        order by j.id desc limit v_few) as j) as s
    where s.fits or s.n = v_few order by s.id desc limit p_limit + 1
  ), alive as (
    select s.id, s.fits, s.n = v_scan as last from (
      select t.id, row_number() over (order by t.id desc) as n,
        (v_labels is null or t.labels @> v_labels) and (v_lanes is null or t.lane_id = any (v_lanes)) as fits
      from (
        select t.id, t.lane_id, t.labels from holdfast.tasks t
        where t.id < p_before and t.job_id is null and (v_owner is null or t.owner = v_owner)
          and (v_status is null or v_status in ('queued', 'running'))
          and (v_status is distinct from 'running' or t.status = 'running')
          and (v_status is distinct from 'queued' or t.status in ('waiting', 'scheduled', 'ready'))
        order by t.id desc limit v_scan) as t) as s
    where s.fits or s.n = v_scan order by s.id desc limit p_limit + 1
  ), ended as (
    select s.id, s.fits, s.n = v_scan as last from (
      select h.id, row_number() over (order by h.id desc) as n,
        (v_labels is null or h.labels @> v_labels) and (v_kinds is null or h.kind_id = any (v_kinds)) as fits
      from (
        select h.id, h.kind_id, h.labels from holdfast.history h
        where h.id < p_before and h.job_id is null and (v_owner is null or h.owner = v_owner)
          and (v_status is null or h.status = v_status) and (v_status is null or v_status not in ('queued', 'running'))
        order by h.id desc limit v_scan) as h) as s
    where s.fits or s.n = v_scan order by s.id desc limit p_limit + 1
  ), looked as materialized (
    select * from several union all select * from alive union all select * from ended
  ), bottom as materialized (
    -- PostgreSQL has no max() for ids before 18.
    select k.id from looked k where k.last and v_picks order by k.id desc limit 1
  )
  select array(select distinct k.id from looked k where k.fits
      and k.id >= coalesce((select b.id from bottom b), '00000000-0000-0000-0000-000000000000') order by k.id desc limit p_limit + 1),
    (select b.id from bottom b)
  into ids, floor;
end $$;

-- A page: {rows, next, partly}. `next` goes to p_before of the page after it, null at the end; `partly` says that this page stopped at
-- p_scan rows before it was full.
create or replace function holdfast.jobs_page(
  p_filter jsonb default '{}', p_before uuid default null, p_limit integer default 50, p_scan integer default 100000) returns jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
declare
  v_limit integer := least(greatest(coalesce(p_limit, 50), 1), 1000);
  v_found record;
  v_more boolean;
begin
  select * into v_found from holdfast.list_ids(coalesce(p_filter, '{}'), coalesce(p_before, 'ffffffff-ffff-ffff-ffff-ffffffffffff'), v_limit,
    least(greatest(coalesce(p_scan, 100000), 100), 1000000));
  v_more := cardinality(v_found.ids) > v_limit;
  return jsonb_build_object('rows', holdfast.list_rows(v_found.ids[1 : v_limit]),
    'next', case when v_more then v_found.ids[v_limit] else v_found.floor end, 'partly', not v_more and v_found.floor is not null);
end $$;

create or replace function holdfast.list_rows(p_ids uuid[]) returns jsonb
language plpgsql stable set search_path = '' set jit = off as $$
begin
  return (
    select coalesce(jsonb_agg(f.body order by f.id desc), '[]') from (
      select j.id, holdfast.job_json(j) as body from holdfast.jobs j where j.id = any (p_ids)
      union all
      select t.id, holdfast.single_json(t) from holdfast.all_tasks t where t.id = any (p_ids) and t.single
    ) as f);
end $$;

-- The rows of a page alone; p_before is the last id of the page before. Nothing in them tells that the walk stopped: jobs_page does.
create or replace function holdfast.list_jobs(p_filter jsonb default '{}', p_before uuid default null, p_limit integer default 50)
returns setof jsonb
language plpgsql stable security definer set search_path = '' as $$
declare
  v_page jsonb := holdfast.jobs_page(p_filter, p_before, p_limit);
begin
  if (v_page -> 'partly')::boolean then
    raise notice 'Older jobs than % were not looked at.', v_page ->> 'next' using hint = 'holdfast.jobs_page tells where to go on.';
  end if;
  return query select r.body from jsonb_array_elements(v_page -> 'rows') with ordinality as r (body, n) order by r.n;
end $$;

call holdfast.allow('holdfast_worker', 'list_jobs', 'jobs_page');
call holdfast.allow('service_role', 'list_jobs', 'jobs_page');
call holdfast.allow('authenticated', 'list_jobs', 'jobs_page');
