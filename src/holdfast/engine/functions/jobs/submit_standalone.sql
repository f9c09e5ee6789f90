-- Submit in a transaction that does nothing else, as most submits do.
--
-- Most of the cost of such a transaction is what it evaluates for the first time. So a plain task for an existing
-- lane is inserted with one statement. Which workers sleep is looked up at once, because the commit comes next
-- (leases/wakeups.sql). Every other job takes the path of `submit`, and the result is the same on both paths.

-- Return whether a job is a single task that a service submits, with options that submit_standalone knows.
create or replace function holdfast.is_plain_single_task_job(p_job jsonb) returns boolean
language plpgsql stable set search_path = '' as $$
begin
  return case when jsonb_typeof(p_job) = 'object' then
    p_job - '{type,queue,args,owner,priority,limit_key,labels,key,run_at,delay_s,expires_at,name}'::text[]
      - '{attempts,base_s,cap_s,jitter,timeout_s,lease_s,crashes}'::text[] = '{}'
    and (p_job -> 'priority' is null or p_job -> 'priority' = 'null'
      or jsonb_typeof(p_job -> 'priority') = 'number' and p_job ->> 'priority' ~ '^-?[0-9]{1,3}$')
    and pg_column_size(p_job) <= 262144 and current_setting('transaction_isolation') = 'read committed'
    -- A service, as in get_end_user_id. Every other caller takes the path of submit, which refuses or checks it.
    and coalesce(nullif(current_setting('role', true), 'none'), session_user) not in ('anon', 'authenticated')
    and has_function_privilege(coalesce(nullif(current_setting('role', true), 'none'), session_user),
      'holdfast.act_for_all_owners()'::regprocedure, 'execute')
      else false end;
end $$;

-- Submit a job whose rows can be inserted with one statement: a single task of a service, also with a key, a delay or a
-- name, or a job type that builds one call. Return null for every other job; then nothing is inserted.
create or replace function holdfast.submit_plain_job(p_job jsonb) returns jsonb
language plpgsql security definer set search_path = '' set plan_cache_mode = force_generic_plan as $$
declare
  v_type text := p_job ->> 'type';
  v_queue text := coalesce(p_job ->> 'queue', 'default');
  v_now timestamptz;
  v_due timestamptz;
  v_name text;
  v_before timestamptz;
  v_transaction xid8;
  v_new_id uuid;
  v_id uuid;
  v_wake boolean;
begin
  if not holdfast.is_plain_single_task_job(p_job) then
    return case when holdfast.is_plain_one_task_graph(p_job) then holdfast.insert_one_task_graph(p_job) end;
  end if;
  v_transaction := pg_current_xact_id();  -- an assignment costs less than `perform`, which is a statement
  v_now := holdfast.now();
  v_due := v_now;
  v_new_id := holdfast.new_id(holdfast.build_id_prefix(v_now), holdfast.get_shard_byte_hex());
  if p_job ?| '{key,run_at,delay_s,expires_at,name}' then
    v_due := greatest(holdfast.parse_due_time(p_job, null, v_now), v_now);
    v_before := holdfast.parse_time_field(p_job, 'expires_at');
    v_name := holdfast.check_text(p_job ->> 'name', 'name', 200);
    if p_job ? 'key' and (p_job ->> 'owner' is not null and holdfast.needs_owner_rules(v_queue)
      or not holdfast.reserve_new_idempotency_key(p_job, v_new_id, v_now)) then
      return null;
    end if;
  end if;
  insert into holdfast.tasks (id, lane_id, pos, due_at, status, args, owner, labels, name, start_before)
  select v_new_id, l.id, case when v_due = v_now then nextval('holdfast.task_positions') end, v_due,
    case when v_due = v_now then 'ready' else 'scheduled' end, p_job -> 'args', p_job ->> 'owner',
    nullif(p_job -> 'labels', 'null'), v_name, v_before
  from holdfast.find_open_lane(v_queue, v_type, p_job, p_job ->> 'owner') as l where l.id is not null
  returning id, v_due = v_now and exists (select from holdfast.workers w where w.sleeping
    and v_queue = any (w.queues) and (w.types is null or v_type = any (w.types))) into v_id, v_wake;
  if v_id is null then
    if p_job ? 'key' then  -- reserved for a job that submit is to create
      delete from holdfast.idempotency_keys k
      where k.scope = 'key:' || coalesce(p_job ->> 'owner', '') and k.key = p_job ->> 'key' and k.job_id = v_new_id;
    end if;
    return null;
  end if;
  if v_wake then
    perform holdfast.notify_sleeping_workers(array[v_queue], v_type, holdfast.count_workers_to_wake(1));
  end if;
  return jsonb_build_object('id', v_id, 'created', true, 'status', 'queued', 'tasks',
    jsonb_build_object(coalesce(v_name, v_type), v_id));
end $$;

-- Submit one job in a transaction that does nothing else. The result is that of submit, sooner for plain jobs.
create or replace function holdfast.submit_standalone(p_job jsonb) returns jsonb
language plpgsql security definer set search_path = '' set plan_cache_mode = force_generic_plan as $$
begin
  if p_job -> 'check' = 'true' then
    perform holdfast.validate_job_args(p_job);
    p_job := p_job - 'check';
  end if;
  return coalesce(holdfast.submit_plain_job(p_job), holdfast.submit(p_job));
end $$;

-- Find the lane of a task that a service submits. None if there is no such lane yet, or if jobs of the owner are
-- counted or take turns. No pinned search_path, so that it is inlined; every name in it is qualified.
create or replace function holdfast.find_open_lane(p_queue text, p_type text, p_task jsonb, p_owner text)
returns table (id bigint)
language sql stable as $$
  select pg_catalog.min(l.id) from holdfast.task_policies k
  join holdfast.lanes l on l.policy_id = k.id and l.closed_at is null and not l.returned
    and l.priority = coalesce(p_task ->> 'priority', '0')::smallint
    and coalesce(l.limit_key, '') = coalesce(p_task ->> 'limit_key', '')
    and l.limit_key is not distinct from p_task ->> 'limit_key'
    and coalesce(l.fair_owner, '') = '' and l.fair_owner is null
  where k.queue = p_queue and k.type = p_type and k.policy = holdfast.parse_retry_policy(p_task)
    and (p_owner is null or not holdfast.needs_owner_rules(p_queue))
$$;

-- Return whether submits with an owner are counted or have lanes of their own: there are quotas, or owners take turns.
create or replace function holdfast.needs_owner_rules(p_queue text) returns boolean
language plpgsql stable set search_path = '' as $$
begin
  return exists (select from holdfast.quotas)
    or exists (select from holdfast.queues q where q.name = p_queue and q.fair_owners);
end $$;

-- Reserve the key of a job for a new id. Return false if another job holds the key, or if submit must refuse it.
create or replace function holdfast.reserve_new_idempotency_key(p_job jsonb, p_id uuid, p_now timestamptz)
returns boolean
language plpgsql set search_path = '' as $$
begin
  if octet_length(p_job ->> 'key') between 1 and 1000 then
    insert into holdfast.idempotency_keys (scope, key, job_id, body_hash, active_only, keep_until)
    values ('key:' || coalesce(p_job ->> 'owner', ''), p_job ->> 'key', p_id, holdfast.hash_job_body(p_job), false,
      p_now + interval '7 days')
    on conflict do nothing;
    return found;
  end if;
  return false;
end $$;

call holdfast.grant_execute('holdfast_worker', 'submit_standalone');
call holdfast.grant_execute('service_role', 'submit_standalone');
