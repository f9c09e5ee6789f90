-- Submit many jobs in one statement.

-- Submit many jobs. Jobs of one task without keys are inserted by one statement; the others one by one, in the given
-- order.
create or replace function holdfast.submit_many(p_jobs jsonb) returns setof jsonb
language plpgsql security definer set search_path = '' set jit = off as $$
declare
  v_user text := holdfast.get_end_user_id();
begin
  if jsonb_typeof(p_jobs) is distinct from 'array' then
    perform holdfast.raise_error('HF004', 'jobs must be a list.', 'jobs');
  end if;
  if v_user is null and holdfast.differ_only_in_args(p_jobs) then
    return query select jsonb_build_object('id', i, 'created', true, 'status', 'queued')
      from unnest(holdfast.insert_uniform_jobs((p_jobs -> 0) - 'args', array(
        select e.job -> 'args' from jsonb_array_elements(p_jobs) with ordinality as e (job, ord) order by e.ord))) as i;
  elsif v_user is null and holdfast.are_plain_single_task_jobs(p_jobs) then
    return query select jsonb_build_object('id', i, 'created', true, 'status', 'queued')
      from holdfast.insert_single_task_jobs(p_jobs) as i;
  else
    return query select holdfast.submit(j) from jsonb_array_elements(p_jobs) as j;
  end if;
end $$;

-- Return whether all jobs are single tasks without keys, batch and argument checks.
create or replace function holdfast.are_plain_single_task_jobs(p_jobs jsonb) returns boolean
language plpgsql immutable set search_path = '' as $$
begin
  return (
  select bool_and(jsonb_typeof(j) = 'object' and not j ?| '{tasks,key,unique_key,batch,after,check}')
  from jsonb_array_elements(p_jobs) as j);
end $$;

-- Return whether the jobs are plain single tasks that differ only in their arguments, as in most bulk submits.
create or replace function holdfast.differ_only_in_args(p_jobs jsonb) returns boolean
language plpgsql immutable set search_path = '' as $$
declare
  v_options jsonb := case when jsonb_typeof(p_jobs -> 0) = 'object' then (p_jobs -> 0) - 'args' end;
begin
  return v_options is not null and not v_options ?| '{tasks,key,unique_key,batch,after,check}' and not exists (
    select from jsonb_array_elements(p_jobs) as j where case when jsonb_typeof(j) = 'object'
      then j - 'args' <> v_options else true end);
end $$;

-- Submit many jobs that differ only in their arguments: p_options has everything else. Return their ids, in order. It
-- costs a third less than submit_many, because no JSON is taken apart.
create or replace function holdfast.submit_uniform(p_options jsonb, p_args jsonb[]) returns uuid[]
language plpgsql security definer set search_path = '' set jit = off as $$
begin
  if holdfast.get_end_user_id() is null and jsonb_typeof(p_options) = 'object'
    and not p_options ?| '{tasks,key,unique_key,batch,after,check}' then
    return holdfast.insert_uniform_jobs(p_options, p_args);
  end if;
  return array(
    select (holdfast.submit(p_options || jsonb_build_object('args', e.args)) ->> 'id')::uuid
    from unnest(p_args) with ordinality as e (args, ord) order by e.ord);
end $$;

-- Insert jobs that differ only in their arguments; all other options are read once. The ids rise by one from a random
-- start, so that they are neighbours in the index. The functions in the select list run in step, without a copy of the
-- arguments.
create or replace function holdfast.insert_uniform_jobs(p_options jsonb, p_args jsonb[]) returns uuid[]
language plpgsql set search_path = '' set jit = off as $$
declare
  v_now timestamptz := holdfast.now();
  v_id text := holdfast.new_id(holdfast.build_id_prefix(v_now), holdfast.get_shard_byte_hex())::text;
  v_start bigint := ('x1' || right(v_id, 12))::bit(52)::bigint;  -- the first digit only keeps the zeros behind it
  v_count integer := cardinality(p_args);
  v_owner text := p_options ->> 'owner';
  v_lane bigint;
  v_due timestamptz := greatest(holdfast.parse_due_time(p_options, null, v_now), v_now);
  v_ready boolean := v_due <= v_now;
  v_status text := case when v_due <= v_now then 'ready' else 'scheduled' end;
  v_name text := p_options ->> 'name';
  v_before timestamptz := holdfast.parse_time_field(p_options, 'expires_at');
  v_labels jsonb := nullif(p_options -> 'labels', 'null');
  v_ids uuid[];
begin
  perform pg_current_xact_id();
  if v_owner is not null then
    perform holdfast.charge_daily_job_quota(v_owner, v_count, v_now);
  end if;
  v_lane := holdfast.find_lane_for_task(p_options, p_options, v_owner);
  v_id := left(v_id, 24);
  v_ids := array(
    select (v_id || substr(to_hex(n), 2))::uuid from generate_series(v_start + 1, v_start + v_count) as n);
  insert into holdfast.tasks (id, lane_id, pos, due_at, status, args, name, owner, start_before, labels)
  select e.id, v_lane, case when v_ready then nextval('holdfast.task_positions') end, v_due, v_status,
    case when pg_column_size(e.args) > 262144
      then holdfast.parse_task_args(jsonb_build_object('type', p_options -> 'type', 'args', e.args)) else e.args end,
    v_name, v_owner, v_before, v_labels
  from (select unnest(v_ids) as id, unnest(p_args) as args) as e;
  if v_ready then
    perform holdfast.wake_workers(array[v_lane], v_count);
  end if;
  return v_ids;
end $$;

-- Insert jobs that are plain single tasks, with one statement. Return their ids.
create or replace function holdfast.insert_single_task_jobs(p_jobs jsonb) returns setof uuid
language plpgsql set search_path = '' set jit = off as $$
declare
  v_now timestamptz := holdfast.now();
  v_id text := holdfast.new_id(holdfast.build_id_prefix(v_now), holdfast.get_shard_byte_hex())::text;
  v_start bigint := ('x' || right(v_id, 12))::bit(48)::bigint;
  v_lanes bigint[];
begin
  perform pg_current_xact_id();
  perform holdfast.charge_daily_job_quota(p_jobs, v_now);
  v_id := left(v_id, 24);
  v_lanes := holdfast.find_lanes(p_jobs, null, null);
  return query
  insert into holdfast.tasks as t (id, lane_id, pos, due_at, status, args, name, owner, start_before, labels)
  select (v_id || lpad(to_hex((v_start + e.ord) & 281474976710655), 12, '0'))::uuid,
    case when cardinality(v_lanes) = 1 then v_lanes[1] else v_lanes[e.ord] end,
    case when d.due_at is null or d.due_at <= v_now then nextval('holdfast.task_positions') end, greatest(d.due_at,
      v_now),
    case when d.due_at is null or d.due_at <= v_now then 'ready' else 'scheduled' end,
    case when pg_column_size(e.body) > 262144 then holdfast.parse_task_args(e.body) else e.body -> 'args' end,
    e.body ->> 'name', e.body ->> 'owner',
    case when e.body ? 'expires_at' then holdfast.parse_time_field(e.body, 'expires_at') end,
      nullif(e.body -> 'labels', 'null')
  from jsonb_array_elements(p_jobs) with ordinality as e (body, ord)
  cross join lateral (select case when e.body ?| '{run_at,delay_s}'
    then holdfast.parse_due_time(e.body, null, v_now) end as due_at offset 0) as d
  returning t.id;
  perform holdfast.wake_workers(array(select distinct l from unnest(v_lanes) as l), jsonb_array_length(p_jobs));
end $$;

-- Return the lane of each job, or a single lane if it is the same for all. With p_job: of each of its tasks, where the
-- options of the job are the defaults and p_owner is the owner.
create or replace function holdfast.find_lanes(p_bodies jsonb, p_job jsonb, p_owner text) returns bigint[]
language plpgsql set search_path = '' set jit = off as $$
declare
  v_fair text[] := array(select q.name from holdfast.queues q where q.fair_owners);
  v_priority double precision := coalesce(holdfast.parse_number_field(p_job, 'priority', -100, 100), 0);
  v_lanes bigint[];
begin
  with input as materialized (
    select e.ord, coalesce(e.body ->> 'queue', p_job ->> 'queue', 'default') as queue, e.body ->> 'type' as type,
      coalesce(case when e.body ? 'priority' then holdfast.parse_number_field(e.body, 'priority', -100, 100) end,
        v_priority)::smallint as priority,
      coalesce(e.body ->> 'limit_key', p_job ->> 'limit_key') as limit_key,
      case when coalesce(e.body ->> 'queue', p_job ->> 'queue', 'default') = any (v_fair)
        then case when p_job is null then e.body ->> 'owner' else p_owner end end as owner,
      case when e.body ?| '{attempts,base_s,cap_s,jitter,timeout_s,lease_s,crashes}'
        then holdfast.parse_retry_policy(e.body)
        else '{}' end as policy
    from jsonb_array_elements(p_bodies) with ordinality as e (body, ord)
  ), lanes as materialized (
    select d.*, holdfast.find_or_create_lane(d.queue, holdfast.check_name(d.type, 'type'), d.priority, d.limit_key,
      d.policy, d.owner) as id
    from (select g.queue, g.type, g.priority, g.limit_key, g.policy, g.owner from input g
      group by 1, 2, 3, 4, 5, 6) as d
  )
  select case when (select count(*) from lanes) = 1 then (select array[l.id] from lanes l) else (
    select array_agg(l.id order by g.ord) from input g
    join lanes l on l.queue = g.queue and l.type = g.type and l.priority = g.priority and l.policy = g.policy
      and coalesce(l.limit_key, '') = coalesce(g.limit_key, '') and l.limit_key is not distinct from g.limit_key
      and coalesce(l.owner, '') = coalesce(g.owner, '') and l.owner is not distinct from g.owner) end
  into v_lanes;
  return v_lanes;
end $$;

call holdfast.grant_execute('holdfast_worker', 'submit_many', 'submit_uniform');
call holdfast.grant_execute('service_role', 'submit_many', 'submit_uniform');
call holdfast.grant_execute('authenticated', 'submit_many', 'submit_uniform');

-- Clients call submit_uniform instead of submit_many where they can. Roles that `holdfast migrate grants` gave
-- submit_many before submit_uniform existed get it too.
do $$
declare
  v_role text;
begin
  for v_role in
    select a.grantee::regrole::text from pg_catalog.pg_proc p, pg_catalog.aclexplode(p.proacl) as a
    where p.oid = 'holdfast.submit_many(jsonb)'::regprocedure and a.grantee <> 0 and a.grantee <> p.proowner
  loop
    execute pg_catalog.format('grant execute on function holdfast.submit_uniform(jsonb, jsonb[]) to %s', v_role);
  end loop;
end $$;
