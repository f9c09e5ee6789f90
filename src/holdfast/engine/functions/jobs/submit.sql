-- Submit: a job, its tasks and their dependencies in one call and one transaction.
--
-- The JSON keys are the signature. Of a job: type, owner, key, unique_key, debounce_s, throttle_s, labels, params, partial, priority,
-- queue, run_at, delay_s, expires_at, batch, tasks. Of a task: name, type, queue, args, priority, run_at,
-- delay_s, expires_at, limit_key, weight, after, and the policy: attempts, base_s, cap_s, jitter, timeout_s,
-- lease_s, crashes. A job without `tasks` is one task and carries the task's keys itself. `check: true` compares the arguments
-- with what workers say about the type (catalogue.sql).
--
-- Every function that gives out positions first makes sure that its transaction has an id: the claim cursor
-- relies on positions being younger than the transaction that took them (claim.sql).

create or replace function holdfast.policy_in(p_task jsonb) returns jsonb
language sql immutable parallel safe as $$
  select case when p_task operator(pg_catalog.?|)
    '{attempts,base_s,cap_s,jitter,timeout_s,lease_s,crashes}'::pg_catalog.text[]
  then pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object(
    'attempts', p_task -> 'attempts', 'base_s', p_task -> 'base_s', 'cap_s', p_task -> 'cap_s',
    'jitter', p_task -> 'jitter', 'timeout_s', p_task -> 'timeout_s', 'lease_s', p_task -> 'lease_s',
    'crashes', p_task -> 'crashes'))
  else '{}'::pg_catalog.jsonb end
$$;

-- When a task falls due: its own run_at or delay, else the job's, else now.
create or replace function holdfast.due_in(p_task jsonb, p_job jsonb, p_now timestamptz) returns timestamptz
language plpgsql stable set search_path = '' as $$
begin
  if not p_task ?| '{run_at,delay_s}' and p_job is not null then
    p_task := p_job;
  end if;
  if not p_task ?| '{run_at,delay_s}' then
    return p_now;
  end if;
  return coalesce(
    holdfast.time_in(p_task, 'run_at'),
    p_now + holdfast.number_in(p_task, 'delay_s', 0, 315360000) * interval '1 second', p_now);
end $$;

create or replace function holdfast.args_in(p_task jsonb) returns jsonb
language plpgsql immutable set search_path = '' as $$
begin
  if pg_column_size(p_task -> 'args') > 262144 then
    perform holdfast.refuse('HF004', format('args of %s are longer than 256 KiB.', p_task ->> 'type'), 'args',
      'Save the payload as an artifact and pass its key instead.');
  end if;
  return p_task -> 'args';
end $$;

create or replace function holdfast.lane_in(p_task jsonb, p_job jsonb, p_owner text) returns bigint
language plpgsql set search_path = '' as $$
begin
  if jsonb_typeof(p_task) is distinct from 'object' then
    perform holdfast.refuse('HF004', 'A task must be a JSON object.', 'tasks');
  end if;
  return holdfast.lane_for(
    coalesce(p_task ->> 'queue', p_job ->> 'queue', 'default'),
    holdfast.check_name(p_task ->> 'type', 'type'),
    coalesce(holdfast.number_in(p_task, 'priority', -100, 100), holdfast.number_in(p_job, 'priority', -100, 100), 0)::smallint,
    coalesce(p_task ->> 'limit_key', p_job ->> 'limit_key'), holdfast.policy_in(p_task), p_owner);
end $$;

-- End users start only what was opened to them: option `public_types`.
create or replace function holdfast.check_public(p_job jsonb) returns void
language plpgsql stable set search_path = '' as $$
declare
  v_allowed jsonb := coalesce((select value from holdfast.options where name = 'public_types'), '[]');
  v_type text;
begin
  for v_type in
    select p_job ->> 'type' where p_job ? 'type'
    union select t ->> 'type' from jsonb_array_elements(coalesce(p_job -> 'tasks', '[]')) as t
  loop
    if v_type is null or not v_allowed ? v_type then
      perform holdfast.refuse('HF005', format('Jobs of type %s are not open to users.', v_type), 'type',
        'Add the type to the option public_types, or submit it from a service.');
    end if;
  end loop;
end $$;

-- Takes the job's keys, or answers with the job that holds one of them, which may be forgotten already. A loser of a race
-- waits here for the winner's commit or rollback.
create or replace function holdfast.take_key(
  p_scope text, p_key text, p_job_id uuid, p_hash bytea, p_active_only boolean) returns uuid
language plpgsql set search_path = '' as $$
declare
  v_held record;
begin
  if p_key is null then
    return null;
  end if;
  if octet_length(p_key) not between 1 and 1000 then
    perform holdfast.refuse('HF004', 'key must be 1 to 1000 bytes long.', 'key');
  end if;
  loop
    insert into holdfast.keys (scope, key, job_id, hash, active_only, keep_until)
    values (p_scope, p_key, p_job_id, p_hash, p_active_only, case when not p_active_only then holdfast.now() + interval '7 days' end)
    on conflict do nothing;
    if found then
      return null;
    end if;
    select k.job_id, k.hash into v_held from holdfast.keys k where k.scope = p_scope and k.key = p_key;
    exit when found;
  end loop;
  if not p_active_only and v_held.hash <> p_hash then
    perform holdfast.refuse('HF003', format('The key %s belongs to another job with a different body.',
      quote_literal(left(p_key, 80))), 'key', 'Use a new key, or submit the same body again.');
  end if;
  return v_held.job_id;
end $$;

-- Debouncing and throttling need a unique key. A debounced job starts after its pause, unless another one comes before.
create or replace function holdfast.timed_in(p_job jsonb) returns jsonb
language plpgsql immutable set search_path = '' as $$
begin
  if p_job ->> 'unique_key' is null then
    perform holdfast.refuse('HF004', 'debounce_s and throttle_s need a unique_key.', 'unique_key');
  end if;
  if p_job ? 'debounce_s' and p_job ?| '{tasks,throttle_s,run_at,delay_s}' then
    perform holdfast.refuse('HF004', 'debounce_s is for a job of one task, without another time.', 'debounce_s');
  end if;
  perform holdfast.number_in(p_job, 'debounce_s', 0.001, 315360000), holdfast.number_in(p_job, 'throttle_s', 0.001, 315360000);
  return p_job || case when p_job ? 'debounce_s' then jsonb_build_object('delay_s', p_job -> 'debounce_s') else '{}' end;
end $$;

-- The job that stands for this one: the live one with the same key; with debounce_s one that has not started, which gets
-- the new arguments and waits anew; with throttle_s the last one, for so long. Else the key is ours.
create or replace function holdfast.take_unique(p_job jsonb, p_owner text, p_id uuid, p_now timestamptz) returns uuid
language plpgsql set search_path = '' as $$
declare
  v_throttle interval := holdfast.number_in(p_job, 'throttle_s', 0.001, 315360000) * interval '1 second';
  v_scope text := case when v_throttle is null then 'unique:' else 'throttle:' end || coalesce(p_owner, '');
  v_held uuid := holdfast.take_key(v_scope, p_job ->> 'unique_key', p_id, ''::bytea, true);
  v_until timestamptz;
begin
  if v_held is not null and (v_throttle is not null or p_job ? 'debounce_s') then
    select k.job_id, k.keep_until into v_held, v_until from holdfast.keys k
    where k.scope = v_scope and k.key = p_job ->> 'unique_key' for update;
    if v_throttle is null then
      update holdfast.tasks t set args = holdfast.args_in(p_job), due_at = holdfast.due_in(p_job, null, p_now)
      where t.id = v_held and t.status || '' = 'scheduled' and t.attempt = 0;
      v_held := case when found then v_held end;
    elsif v_until <= p_now then
      v_held := null;
    end if;
  end if;
  if v_held is null and p_job ?| '{debounce_s,throttle_s}' then
    update holdfast.keys k set job_id = p_id, keep_until = p_now + v_throttle
    where k.scope = v_scope and k.key = p_job ->> 'unique_key';
  end if;
  return v_held;
end $$;

-- What must be the same for a key to mean the same job: all but the key, and where in a trace it was said.
create or replace function holdfast.body_hash(p_job jsonb) returns bytea
language plpgsql immutable set search_path = '' as $$
begin
  p_job := p_job - 'key';
  if jsonb_typeof(p_job -> 'labels') = 'object' then
    p_job := p_job #- '{labels,traceparent}';
    p_job := case when p_job -> 'labels' = '{}' then p_job - 'labels' else p_job end;
  end if;
  return sha256(convert_to(p_job::text, 'UTF8'));
end $$;

create or replace function holdfast.submit(p_job jsonb) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_user text := holdfast.calling_user();
  v_now timestamptz := holdfast.now();
  v_owner text := coalesce(v_user, p_job ->> 'owner');
  v_id uuid := holdfast.new_id(holdfast.id_stem(v_now), holdfast.shard_hex());
  v_held uuid;
  v_tasks jsonb := p_job -> 'tasks';
  v_names jsonb;
begin
  perform pg_current_xact_id();
  if jsonb_typeof(p_job) is distinct from 'object' then
    perform holdfast.refuse('HF004', 'A job must be a JSON object.', 'job');
  end if;
  if v_user is not null then
    if p_job ->> 'owner' <> v_user then
      perform holdfast.refuse('HF005', 'Jobs can only be submitted for yourself.', 'owner');
    end if;
    perform holdfast.check_public(p_job);
  end if;
  if p_job ? 'check' then
    if p_job -> 'check' = 'true' then
      perform holdfast.check_job_args(p_job);
    end if;
    p_job := p_job - 'check';
  end if;
  if p_job ?| '{debounce_s,throttle_s}' then
    p_job := holdfast.timed_in(p_job);
  end if;
  if p_job ?| '{key,unique_key}' then
    v_held := coalesce(
      holdfast.take_key('key:' || coalesce(v_owner, ''), p_job ->> 'key', v_id,
        case when p_job ? 'key' then holdfast.body_hash(p_job) end, false),
      holdfast.take_unique(p_job, v_owner, v_id, v_now));
  end if;
  if v_held is not null then
    delete from holdfast.keys k where k.scope = 'key:' || coalesce(v_owner, '') and k.key = p_job ->> 'key' and k.job_id = v_id;
    return jsonb_build_object('id', v_held, 'created', false, 'status', coalesce(holdfast.job_status(v_held), 'forgotten'),
      'tasks', holdfast.task_names(v_held));
  end if;
  if v_owner is not null and exists (select from holdfast.quotas) then
    perform holdfast.use_operations(v_owner, 1, v_now);
  end if;
  if v_tasks is null then
    v_names := holdfast.insert_single(v_id, p_job, null, v_owner, v_now);
  elsif jsonb_typeof(v_tasks) <> 'array' or jsonb_array_length(v_tasks) = 0 then
    perform holdfast.refuse('HF004', 'tasks must be a list of at least one task.', 'tasks');
  elsif jsonb_array_length(v_tasks) = 1 and not p_job ? 'params'
    and coalesce(p_job ->> 'type', v_tasks #>> '{0,type}') = v_tasks #>> '{0,type}' then
    v_names := holdfast.insert_single(v_id, v_tasks -> 0, p_job, v_owner, v_now);
  else
    v_names := holdfast.insert_graph(v_id, p_job, v_owner, v_now);
  end if;
  if p_job ? 'batch' then
    perform holdfast.join_batch(p_job ->> 'batch', 1);
  end if;
  return jsonb_build_object('id', v_id, 'created', true, 'status', 'queued', 'tasks', v_names);
end $$;

-- A job that is one task. `p_job` is null when the job's keys are in the task itself.
create or replace function holdfast.insert_single(
  p_id uuid, p_task jsonb, p_job jsonb, p_owner text, p_now timestamptz) returns jsonb
language plpgsql set search_path = '' as $$
declare
  v_job jsonb := coalesce(p_job, p_task);
  v_lane bigint := holdfast.lane_in(p_task, v_job, p_owner);
  v_due timestamptz := holdfast.due_in(p_task, v_job, p_now);
begin
  if jsonb_typeof(p_task -> 'after') = 'array' and p_task -> 'after' <> '[]' then
    perform holdfast.refuse('HF004', 'A job of one task has nothing to come after.', 'after');
  end if;
  insert into holdfast.tasks (id, lane_id, pos, due_at, status, args, name, owner, start_before, labels, unique_key, batch_id)
  values (p_id, v_lane, case when v_due <= p_now then nextval('holdfast.positions') end,
    greatest(v_due, p_now), case when v_due <= p_now then 'ready' else 'scheduled' end,
    case when pg_column_size(p_task) > 262144 then holdfast.args_in(p_task) else p_task -> 'args' end, p_task ->> 'name', p_owner,
    case when p_task ? 'expires_at' or v_job ? 'expires_at'
      then coalesce(holdfast.time_in(p_task, 'expires_at'), holdfast.time_in(v_job, 'expires_at')) end,
    nullif(v_job -> 'labels', 'null'), v_job ->> 'unique_key', (v_job ->> 'batch')::uuid);
  if v_due <= p_now then
    perform holdfast.wake(array[v_lane]);
  end if;
  return jsonb_build_object(coalesce(p_task ->> 'name', p_task ->> 'type'), p_id);
end $$;

create or replace function holdfast.simple_jobs(p_jobs jsonb) returns boolean
language plpgsql immutable set search_path = '' as $$
begin
  return (
  select bool_and(jsonb_typeof(j) = 'object' and not j ?| '{tasks,key,unique_key,batch,after,check}')
  from jsonb_array_elements(p_jobs) as j);
end $$;

-- Many jobs. Jobs of one task without keys go in with one insert; the others one by one, in the given order.
create or replace function holdfast.submit_many(p_jobs jsonb) returns setof jsonb
language plpgsql security definer set search_path = '' set jit = off as $$
declare
  v_user text := holdfast.calling_user();
begin
  if jsonb_typeof(p_jobs) is distinct from 'array' then
    perform holdfast.refuse('HF004', 'jobs must be a list.', 'jobs');
  end if;
  if v_user is null and holdfast.alike(p_jobs) then
    return query select * from holdfast.insert_alike(p_jobs, (p_jobs -> 0) - 'args');
  elsif v_user is null and holdfast.simple_jobs(p_jobs) then
    return query select jsonb_build_object('id', i, 'created', true, 'status', 'queued')
      from holdfast.insert_many(p_jobs) as i;
  else
    return query select holdfast.submit(j) from jsonb_array_elements(p_jobs) as j;
  end if;
end $$;

-- Whether the jobs are simple and differ in nothing but their arguments, as most that come in bulk do.
create or replace function holdfast.alike(p_jobs jsonb) returns boolean
language plpgsql immutable set search_path = '' as $$
declare
  v_rest jsonb := case when jsonb_typeof(p_jobs -> 0) = 'object' then (p_jobs -> 0) - 'args' end;
begin
  return v_rest is not null and not v_rest ?| '{tasks,key,unique_key,batch,after,check}' and not exists (
    select from jsonb_array_elements(p_jobs) as j where case when jsonb_typeof(j) = 'object' then j - 'args' <> v_rest else true end);
end $$;

-- Such jobs: everything but the arguments is read once. The ids rise by one from a random start, so that they end up side by side
-- in the index.
create or replace function holdfast.insert_alike(p_jobs jsonb, p_rest jsonb) returns setof jsonb
language plpgsql set search_path = '' set jit = off as $$
declare
  v_now timestamptz := holdfast.now();
  v_id text := holdfast.new_id(holdfast.id_stem(v_now), holdfast.shard_hex())::text;
  v_start bigint := ('x' || right(v_id, 12))::bit(48)::bigint;
  v_owner text := p_rest ->> 'owner';
  v_lane bigint;
  v_due timestamptz := holdfast.due_in(p_rest, null, v_now);
  v_ready boolean := v_due <= v_now;
  v_before timestamptz := holdfast.time_in(p_rest, 'expires_at');
begin
  perform pg_current_xact_id();
  if v_owner is not null then
    perform holdfast.use_operations(v_owner, jsonb_array_length(p_jobs), v_now);
  end if;
  v_lane := holdfast.lane_in(p_rest, p_rest, v_owner);
  v_id := left(v_id, 24);
  return query
  insert into holdfast.tasks as t (id, lane_id, pos, due_at, status, args, name, owner, start_before, labels)
  select (v_id || lpad(to_hex((v_start + e.ord) & 281474976710655), 12, '0'))::uuid, v_lane,
    case when v_ready then nextval('holdfast.positions') end, greatest(v_due, v_now), case when v_ready then 'ready' else 'scheduled' end,
    case when pg_column_size(e.body) > 262144 then holdfast.args_in(e.body) else e.body -> 'args' end,
    p_rest ->> 'name', v_owner, v_before, nullif(p_rest -> 'labels', 'null')
  from jsonb_array_elements(p_jobs) with ordinality as e (body, ord)
  returning jsonb_build_object('id', t.id, 'created', true, 'status', 'queued');
  if v_ready then
    perform holdfast.wake(array[v_lane]);
  end if;
end $$;

create or replace function holdfast.insert_many(p_jobs jsonb) returns setof uuid
language plpgsql set search_path = '' set jit = off as $$
declare
  v_now timestamptz := holdfast.now();
  v_id text := holdfast.new_id(holdfast.id_stem(v_now), holdfast.shard_hex())::text;
  v_start bigint := ('x' || right(v_id, 12))::bit(48)::bigint;
  v_lanes bigint[];
begin
  perform pg_current_xact_id();
  perform holdfast.use_operations(p_jobs, v_now);
  v_id := left(v_id, 24);
  v_lanes := holdfast.lanes_of_many(p_jobs);
  return query
  insert into holdfast.tasks as t (id, lane_id, pos, due_at, status, args, name, owner, start_before, labels)
  select (v_id || lpad(to_hex((v_start + e.ord) & 281474976710655), 12, '0'))::uuid,
    case when cardinality(v_lanes) = 1 then v_lanes[1] else v_lanes[e.ord] end,
    case when d.due_at is null or d.due_at <= v_now then nextval('holdfast.positions') end, greatest(d.due_at, v_now),
    case when d.due_at is null or d.due_at <= v_now then 'ready' else 'scheduled' end,
    case when pg_column_size(e.body) > 262144 then holdfast.args_in(e.body) else e.body -> 'args' end,
    e.body ->> 'name', e.body ->> 'owner',
    case when e.body ? 'expires_at' then holdfast.time_in(e.body, 'expires_at') end, nullif(e.body -> 'labels', 'null')
  from jsonb_array_elements(p_jobs) with ordinality as e (body, ord)
  cross join lateral (select case when e.body ?| '{run_at,delay_s}' then holdfast.due_in(e.body, null, v_now) end as due_at offset 0) as d
  returning t.id;
  perform holdfast.wake(array(select distinct l from unnest(v_lanes) as l));
end $$;

-- The lane of each job, or just one when it is the same for all.
create or replace function holdfast.lanes_of_many(p_jobs jsonb) returns bigint[]
language plpgsql set search_path = '' set jit = off as $$
declare
  v_fair text[] := array(select q.name from holdfast.queues q where q.fair_owners);
  v_lanes bigint[];
begin
  with given as materialized (
    select e.ord, coalesce(e.body ->> 'queue', 'default') as queue, e.body ->> 'type' as type,
      coalesce(case when e.body ? 'priority' then holdfast.number_in(e.body, 'priority', -100, 100) end, 0)::smallint as priority,
      e.body ->> 'limit_key' as limit_key,
      case when coalesce(e.body ->> 'queue', 'default') = any (v_fair) then e.body ->> 'owner' end as owner,
      case when e.body ?| '{attempts,base_s,cap_s,jitter,timeout_s,lease_s,crashes}' then holdfast.policy_in(e.body) else '{}' end as policy
    from jsonb_array_elements(p_jobs) with ordinality as e (body, ord)
  ), lanes as materialized (
    select d.*, holdfast.lane_for(d.queue, holdfast.check_name(d.type, 'type'), d.priority, d.limit_key, d.policy, d.owner) as id
    from (select g.queue, g.type, g.priority, g.limit_key, g.policy, g.owner from given g group by 1, 2, 3, 4, 5, 6) as d
  )
  select case when (select count(*) from lanes) = 1 then (select array[l.id] from lanes l) else (
    select array_agg(l.id order by g.ord) from given g
    join lanes l on l.queue = g.queue and l.type = g.type and l.priority = g.priority and l.policy = g.policy
      and coalesce(l.limit_key, '') = coalesce(g.limit_key, '') and l.limit_key is not distinct from g.limit_key
      and coalesce(l.owner, '') = coalesce(g.owner, '') and l.owner is not distinct from g.owner) end
  into v_lanes;
  return v_lanes;
end $$;

call holdfast.allow('holdfast_worker', 'submit', 'submit_many');
call holdfast.allow('service_role', 'submit', 'submit_many');
call holdfast.allow('authenticated', 'submit', 'submit_many');
