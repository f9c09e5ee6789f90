-- Submit: store a job, its tasks and their dependencies in one call and one transaction.
--
-- The JSON keys are the signature. Of a job: type, owner, key, unique_key, debounce_s, throttle_s, labels, params,
-- partial, priority, queue, run_at, delay_s, expires_at, batch, tasks. Of a task: name, type, queue, args, priority,
-- run_at, delay_s, expires_at, limit_key, weight, after, and the retry policy: attempts, base_s, cap_s, jitter,
-- timeout_s, lease_s, crashes. A job without `tasks` is one task and has the keys of the task itself. `check: true`
-- validates the arguments against the schema that workers registered for the type.
--
-- Every function that assigns positions first makes sure that its transaction has an id. The claim cursor relies on
-- it: a position is younger than the transaction that took it (leases/claim.sql).

-- Submit one job. Return {id, created, status, tasks: {name: id}}.
create or replace function holdfast.submit(p_job jsonb) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_user text := holdfast.get_end_user_id();
  v_now timestamptz := holdfast.now();
  v_owner text := coalesce(v_user, p_job ->> 'owner');
  v_id uuid := holdfast.new_id(holdfast.build_id_prefix(v_now), holdfast.get_shard_byte_hex());
  v_existing uuid;
  v_tasks jsonb := p_job -> 'tasks';
  v_names jsonb;
begin
  perform pg_current_xact_id();
  if jsonb_typeof(p_job) is distinct from 'object' then
    perform holdfast.raise_error('HF004', 'A job must be a JSON object.', 'job');
  end if;
  if v_user is not null then
    perform holdfast.check_user_submission(p_job, v_user);
    perform holdfast.lock_job_count(v_user);
  end if;
  if p_job ? 'check' then
    if p_job -> 'check' = 'true' then
      perform holdfast.validate_job_args(p_job);
    end if;
    p_job := p_job - 'check';
  end if;
  if p_job ?| '{debounce_s,throttle_s}' then
    p_job := holdfast.apply_debounce_options(p_job);
  end if;
  if p_job ?| '{key,unique_key}' then
    v_existing := coalesce(
      holdfast.reserve_idempotency_key('key:' || coalesce(v_owner, ''), p_job ->> 'key', v_id,
        case when p_job ? 'key' then holdfast.hash_job_body(p_job) end, false),
      holdfast.reserve_unique_key(p_job, v_owner, v_id, v_now));
  end if;
  if v_existing is not null then
    delete from holdfast.idempotency_keys k where k.scope = 'key:' || coalesce(v_owner, '') and k.key = p_job ->> 'key'
      and k.job_id = v_id;
    return jsonb_build_object('id', v_existing, 'created', false, 'status',
      coalesce(holdfast.get_job_status(v_existing), 'forgotten'),
      'tasks', holdfast.get_task_ids_by_name(v_existing));
  end if;
  if v_user is not null then
    perform holdfast.check_job_count(v_user, holdfast.get_user_job_limit());
    p_job := holdfast.add_registered_queues(p_job);
    v_tasks := p_job -> 'tasks';
  end if;
  if v_owner is not null and exists (select from holdfast.quotas) then
    perform holdfast.charge_daily_job_quota(v_owner, 1, v_now);
  end if;
  if v_tasks is null then
    v_names := holdfast.insert_single_task_job(v_id, p_job, null, v_owner, v_now);
  elsif jsonb_typeof(v_tasks) <> 'array' or jsonb_array_length(v_tasks) = 0 then
    perform holdfast.raise_error('HF004', 'tasks must be a list of at least one task.', 'tasks');
  elsif jsonb_array_length(v_tasks) = 1 and not p_job ? 'params'
    and coalesce(p_job ->> 'type', v_tasks #>> '{0,type}') = v_tasks #>> '{0,type}' then
    v_names := holdfast.insert_single_task_job(v_id, v_tasks -> 0, p_job, v_owner, v_now);
  else
    v_names := holdfast.insert_graph_job(v_id, p_job, v_owner, v_now);
  end if;
  if p_job ? 'batch' then
    perform holdfast.add_jobs_to_batch(p_job ->> 'batch', 1);
  end if;
  return jsonb_build_object('id', v_id, 'created', true, 'status', 'queued', 'tasks', v_names);
end $$;

-- Insert a job of one task. `p_job` is null if the keys of the job are in the task itself.
create or replace function holdfast.insert_single_task_job(
  p_id uuid, p_task jsonb, p_job jsonb, p_owner text, p_now timestamptz) returns jsonb
language plpgsql set search_path = '' as $$
declare
  v_job jsonb := coalesce(p_job, p_task);
  v_lane bigint := holdfast.find_lane_for_task(p_task, v_job, p_owner);
  v_due timestamptz := holdfast.parse_due_time(p_task, v_job, p_now);
begin
  if jsonb_typeof(p_task -> 'after') = 'array' and p_task -> 'after' <> '[]' then
    perform holdfast.raise_error('HF004', 'A job of one task cannot have dependencies.', 'after');
  end if;
  insert into holdfast.tasks (id, lane_id, pos, due_at, status, args, name, owner, start_before, labels, unique_key,
    batch_id)
  values (p_id, v_lane, case when v_due <= p_now then nextval('holdfast.task_positions') end,
    greatest(v_due, p_now), case when v_due <= p_now then 'ready' else 'scheduled' end,
    case when pg_column_size(p_task) > 262144 then holdfast.parse_task_args(p_task)
      else p_task -> 'args' end,
    case when p_task ? 'name' then holdfast.check_text(p_task ->> 'name', 'name', 200) end, p_owner,
    case when p_task ? 'expires_at' or v_job ? 'expires_at'
      then coalesce(holdfast.parse_time_field(p_task, 'expires_at'), holdfast.parse_time_field(v_job,
        'expires_at')) end,
    nullif(v_job -> 'labels', 'null'), v_job ->> 'unique_key', (v_job ->> 'batch')::uuid);
  if v_due <= p_now then
    perform holdfast.wake_workers(array[v_lane], 1);
  end if;
  return jsonb_build_object(coalesce(p_task ->> 'name', p_task ->> 'type'), p_id);
end $$;

call holdfast.grant_execute('holdfast_worker', 'submit');
call holdfast.grant_execute('service_role', 'submit');
call holdfast.grant_execute('authenticated', 'submit');
