-- Submit in a transaction that does nothing else, as most submits do.
--
-- Most of the cost of such a transaction is what it evaluates for the first time. So a plain task for an existing
-- lane is inserted with one statement. Which workers sleep is looked up at once, because the commit comes next
-- (leases/wakeups.sql). Every other job takes the path of `submit`, and the result is the same on both paths.

-- Return whether a job is a single task that a service submits to run now and whose options need no check other than
-- its lane.
create or replace function holdfast.is_plain_single_task_job(p_job jsonb) returns boolean
language plpgsql stable set search_path = '' as $$
begin
  return case when jsonb_typeof(p_job) = 'object' then
    p_job - '{type,queue,args,owner,priority,limit_key,labels}'::text[]
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

-- Submit one job in a transaction that does nothing else. The result is that of submit; plain tasks are faster.
create or replace function holdfast.submit_standalone(p_job jsonb) returns jsonb
language plpgsql security definer set search_path = '' set plan_cache_mode = force_generic_plan as $$
declare
  v_type text := p_job ->> 'type';
  v_queue text := coalesce(p_job ->> 'queue', 'default');
  v_id uuid;
begin
  if holdfast.is_plain_single_task_job(p_job) then
    perform pg_current_xact_id();
    insert into holdfast.tasks (id, lane_id, pos, due_at, status, args, owner, labels)
    select holdfast.new_id(holdfast.build_id_prefix(l.now), holdfast.get_shard_byte_hex()), l.id,
      nextval('holdfast.task_positions'),
      l.now, 'ready',
      p_job -> 'args', p_job ->> 'owner', nullif(p_job -> 'labels', 'null')
    from (
      select l.id, holdfast.now() as now from holdfast.task_policies k
      join holdfast.lanes l on l.policy_id = k.id and l.priority = coalesce(p_job ->> 'priority', '0')::smallint
        and l.closed_at is null and not l.returned
        and coalesce(l.limit_key, '') = coalesce(p_job ->> 'limit_key', '')
          and l.limit_key is not distinct from p_job ->> 'limit_key'
        and coalesce(l.fair_owner, '') = '' and l.fair_owner is null
      where k.queue = v_queue and k.type = v_type and k.policy = holdfast.parse_retry_policy(p_job)
        and (p_job ->> 'owner' is null or not exists (select from holdfast.quotas)
          and not exists (select from holdfast.queues q where q.name = v_queue and q.fair_owners))
      order by l.id limit 1) as l
    returning id into v_id;
  end if;
  if v_id is null then
    return holdfast.submit(p_job);
  end if;
  if exists (select from holdfast.workers w where w.sleeping and v_queue = any (w.queues)
    and (w.types is null or v_type = any (w.types))) then
    perform holdfast.notify_sleeping_workers(array[v_queue], v_type, holdfast.count_workers_to_wake(1));
  end if;
  return jsonb_build_object('id', v_id, 'created', true, 'status', 'queued', 'tasks', jsonb_build_object(v_type, v_id));
end $$;

call holdfast.grant_execute('holdfast_worker', 'submit_standalone');
call holdfast.grant_execute('service_role', 'submit_standalone');
