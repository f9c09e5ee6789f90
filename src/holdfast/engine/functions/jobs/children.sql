-- Children: tasks that a running task adds to its own job. Refused if the lease is stale, as every write is.

-- Add tasks to the job of a running task. p_tasks is as in submit; `after` may also name tasks that the job already
-- has, including the caller. Return {name: id} of the tasks. Tasks that already exist, because an earlier attempt
-- added them, are returned as they are.
create or replace function holdfast.add_tasks(p_task_id uuid, p_attempt integer, p_nonce bigint, p_tasks jsonb)
  returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_job uuid := (select t.job_id from holdfast.tasks t where t.id = p_task_id);
  v_existing jsonb;
  v_new jsonb;
  v_effects jsonb;
begin
  if jsonb_typeof(p_tasks) is distinct from 'array' or p_tasks = '[]' then
    perform holdfast.raise_error('HF004', 'tasks must be a list of at least one task.', 'tasks');
  end if;
  if v_job is not null then
    perform from holdfast.jobs j where j.id = v_job for update;
  end if;
  perform holdfast.assert_lease(p_task_id, p_attempt, p_nonce);
  if v_job is null then
    v_job := holdfast.convert_task_to_graph_job(p_task_id, v_now);
  end if;
  select jsonb_object_agg(t.name, t.id) into v_existing from holdfast.tasks t where t.job_id = v_job;
  select jsonb_agg(t) into v_new from jsonb_array_elements(p_tasks) as t
    where not v_existing ? coalesce(t ->> 'name', t ->> 'type');
  if v_new is not null then
    perform holdfast.validate_task_graph(v_new, array(select jsonb_object_keys(v_existing)));
    v_existing := v_existing || holdfast.insert_graph_tasks(v_job, v_new, '{}', (
      select j.owner from holdfast.jobs j where j.id = v_job), v_now, v_existing);
    update holdfast.jobs j set total = j.total + jsonb_array_length(v_new), progress_weight = j.progress_weight + (
      select sum(coalesce(holdfast.parse_number_field(t, 'weight', 0, 1e9), 1)) from jsonb_array_elements(v_new) as t)
    where j.id = v_job;
    -- Parents may have ended before their children were added.
    v_effects := holdfast.resolve_added_dependencies(v_job, v_now);
    perform holdfast.apply_task_end_effects(null, v_effects, v_now);
  end if;
  return (select jsonb_object_agg(n.name, v_existing -> n.name)
    from (select coalesce(t ->> 'name', t ->> 'type') as name from jsonb_array_elements(p_tasks) as t) as n);
end $$;

-- Resolve the dependencies of added tasks on tasks that had already ended. Return the effects of jobs that ended.
create or replace function holdfast.resolve_added_dependencies(p_job_id uuid, p_now timestamptz) returns jsonb
language plpgsql set search_path = '' as $$
declare
  v_parents uuid[] := array(select distinct p.id from holdfast.dependencies e join holdfast.tasks p
    on p.id = e.parent_id
    where e.job_id = p_job_id and not e.satisfied and p.status || '' in ('succeeded', 'failed', 'cancelled'));
  v_ended uuid[];
begin
  v_ended := holdfast.satisfy_dependencies(v_parents, p_now);
  return case when v_ended = '{}' then '[]' else holdfast.resolve_dependencies(v_ended, p_now) end;
end $$;

-- Turn a job of one task into a job of several; its id stays. The caller has locked the task. If another call of the
-- same lease holder was faster, its job comes after the task in the lock order, so this does not wait for it: the
-- caller retries.
create or replace function holdfast.convert_task_to_graph_job(p_task_id uuid, p_now timestamptz) returns uuid
language plpgsql set search_path = '' as $$
begin
  if exists (select from holdfast.tasks t where t.id = p_task_id and t.job_id is not null) then
    perform from holdfast.jobs j where j.id = p_task_id for update nowait;
    return p_task_id;
  end if;
  insert into holdfast.jobs (id, type, owner, status, total, progress_weight, event_seq, labels, unique_key, batch_id,
    started_at)
  select t.id, l.type, t.owner, 'running', 1, coalesce(t.weight, 1), coalesce(t.event_seq, 0), t.labels, t.unique_key,
    t.batch_id, t.started_at
  from holdfast.tasks t join holdfast.lanes l on l.id = t.lane_id where t.id = p_task_id;
  update holdfast.tasks t set job_id = t.id, name = coalesce(t.name, l.type), event_seq = null, unique_key = null,
    batch_id = null,
    labels = null
  from holdfast.lanes l where t.id = p_task_id and l.id = t.lane_id;
  return p_task_id;
exception when lock_not_available then
  raise exception using errcode = '40001', message = 'Another transaction is changing the job; try again.';
end $$;

call holdfast.grant_execute('holdfast_worker', 'add_tasks');
call holdfast.grant_execute('service_role', 'add_tasks');
