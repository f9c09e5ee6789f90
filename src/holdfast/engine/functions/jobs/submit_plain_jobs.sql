-- Submit several jobs whose rows can be inserted without waiting for anybody, with one statement for all of them.
--
-- A statement that inserts into `tasks` costs far more than a row of it: its constraints and the conditions of its
-- indexes are prepared again by each statement.

-- Submit those of the jobs that can be inserted: single tasks and job types that build one call, to run at once. A job
-- with an owner in p_owners is submitted for that user, who may have p_max_unfinished unfinished jobs. Return the result
-- of each job in their order, or null for a job that was not submitted: it needs more than an insert, there is no lane
-- for it yet, its user has too many jobs, or another transaction is submitting for its user.
create or replace function holdfast.submit_plain_jobs(p_jobs jsonb[], p_owners text[], p_max_unfinished integer)
returns jsonb[]
language plpgsql security definer set search_path = '' as $$
declare
  v_job jsonb;
  v_numbers integer[] := '{}';
  v_insertable jsonb[] := '{}';
  v_owners text[] := '{}';
begin
  for i in 1 .. cardinality(p_jobs) loop
    v_job := p_jobs[i];
    if v_job -> 'check' = 'true' then
      perform holdfast.validate_job_args(v_job);
      v_job := v_job - 'check';
    end if;
    if p_owners[i] is not null then
      v_job := v_job || jsonb_build_object('owner', p_owners[i]);
    end if;
    if not v_job ?| '{key,run_at,delay_s,expires_at,name}'
      and (holdfast.is_plain_single_task_job(v_job) or holdfast.is_plain_one_task_graph(v_job))
      and (p_owners[i] is null or holdfast.can_submit_now(p_owners[i],
        p_max_unfinished - coalesce(cardinality(array_positions(v_owners, p_owners[i])), 0)))
    then
      v_numbers := v_numbers || i;
      v_insertable := v_insertable || v_job;
      v_owners := v_owners || p_owners[i];
    end if;
  end loop;
  return holdfast.insert_plain_jobs(v_insertable, v_numbers, cardinality(p_jobs));
end $$;

-- Return whether a user may submit one more job, without waiting: false also while another transaction submits for the
-- user.
create or replace function holdfast.can_submit_now(p_owner text, p_max_unfinished integer) returns boolean
language plpgsql set search_path = '' as $$
begin
  return pg_try_advisory_xact_lock(1213154901, hashtext(p_owner))  -- as in lock_job_count
    and holdfast.count_unfinished_jobs(p_owner, p_max_unfinished) < p_max_unfinished;
end $$;

-- Insert the jobs for which there is a lane, and wake workers. Return p_size results: that of each job in the place that
-- p_numbers has for it. The rows are those of submit_plain_job.
create or replace function holdfast.insert_plain_jobs(p_jobs jsonb[], p_numbers integer[], p_size integer)
returns jsonb[]
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan set enable_hashjoin = off
  set enable_mergejoin = off as $$
declare
  v_transaction xid8 := pg_current_xact_id();  -- before the first position (submit.sql)
  v_now timestamptz := holdfast.now();
  v_prefix text := holdfast.build_id_prefix(v_now);
  v_shard text := holdfast.get_shard_byte_hex();
  v_results jsonb[] := array_fill(null::jsonb, array[p_size]);
  v_queues text[] := '{}';
  v_types text[] := '{}';
  v_row record;
begin
  for v_row in
    with request as materialized (
      select r.number, r.job, r.job ? 'tasks' as is_graph, coalesce(r.job #> '{tasks,0}', r.job) as task,
        holdfast.new_id(v_prefix, v_shard) as id, holdfast.new_id(v_prefix, v_shard) as task_id
      from unnest(p_jobs, p_numbers) as r (job, number)
    ), placed as materialized (
      select r.number, r.job, r.is_graph, r.task, r.id, case when r.is_graph then r.task_id else r.id end as task_id,
        r.task ->> 'type' as type, coalesce(r.task ->> 'queue', 'default') as queue, l.id as lane_id
      from request r, holdfast.find_open_lane(coalesce(r.task ->> 'queue', 'default'), r.task ->> 'type', r.task,
        r.job ->> 'owner') as l
      where l.id is not null
    ), job as (
      insert into holdfast.jobs (id, type, owner, total, progress_weight, params, labels)
      select p.id, p.job ->> 'type', p.job ->> 'owner', 1, 1, nullif(p.job -> 'params', 'null'),
        nullif(p.job -> 'labels', 'null') from placed p where p.is_graph
    ), task as (
      insert into holdfast.tasks (id, job_id, lane_id, pos, due_at, status, args, owner, labels, name, weight)
      select p.task_id, case when p.is_graph then p.id end, p.lane_id, nextval('holdfast.task_positions'), v_now, 'ready',
        p.task -> 'args', p.job ->> 'owner', case when not p.is_graph then nullif(p.job -> 'labels', 'null') end,
        case when p.is_graph then coalesce(p.task ->> 'name', p.type) end,
        case when p.is_graph then (p.task ->> 'weight')::double precision end
      from placed p order by p.number
    )
    select p.number, p.queue, p.type, jsonb_build_object('id', p.id, 'created', true, 'status', 'queued', 'tasks',
      jsonb_build_object(coalesce(p.task ->> 'name', p.type), p.task_id)) as result
    from placed p
  loop
    v_results[v_row.number] := v_row.result;
    v_queues := v_queues || v_row.queue;
    v_types := v_types || v_row.type;
  end loop;
  for v_row in
    select u.queue, u.type, count(*)::integer as tasks from unnest(v_queues, v_types) as u (queue, type)
    where exists (select from holdfast.workers w where w.sleeping and u.queue = any (w.queues)
      and (w.types is null or u.type = any (w.types)))
    group by u.queue, u.type
  loop
    perform holdfast.notify_sleeping_workers(array[v_row.queue], v_row.type,
      holdfast.count_workers_to_wake(v_row.tasks));
  end loop;
  return v_results;
end $$;

call holdfast.grant_execute('service_role', 'submit_plain_jobs');
