-- Build the submission of an existing job, to run it again as a new one.

-- Return an existing job as an argument of `submit`, to run it again as a new job. The argument has no keys and times,
-- which belong to the old job, and no tasks that other tasks added, which will add them again: those are younger than
-- the job.
create or replace function holdfast.build_job_resubmission(p_id uuid) returns jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
declare
  v_user text := holdfast.get_end_user_id();
  v_job holdfast.jobs;
  v_tasks jsonb;
begin
  if not holdfast.can_user_see_job(p_id, v_user) then
    perform holdfast.raise_error('HF002', format('Job %s does not exist.', p_id), 'id');
  end if;
  select * into v_job from holdfast.jobs j where j.id = p_id;
  if not found or exists (select from holdfast.all_tasks t where t.id = p_id) then
    return holdfast.build_task_resubmission(p_id) || jsonb_strip_nulls(jsonb_build_object(
      'owner', coalesce(v_job.owner, (select t.owner from holdfast.all_tasks t where t.id = p_id limit 1)),
      'labels', coalesce(v_job.labels, (select t.labels from holdfast.all_tasks t where t.id = p_id limit 1))));
  end if;
  select jsonb_agg(holdfast.build_task_resubmission(t.id) || jsonb_strip_nulls(jsonb_build_object('name', t.name,
    'weight', t.weight,
    'after', (select jsonb_agg(jsonb_build_object('name', p.name, 'on_failure', e.on_failure))
      from holdfast.dependencies e join holdfast.all_tasks p on p.id = e.parent_id where e.child_id = t.id)))
        order by t.id) into v_tasks
  from holdfast.all_tasks t
  where t.id in (select i.id from holdfast.tasks i where i.job_id = p_id union all select h.id from holdfast.history h
    where h.job_id = p_id)
    and holdfast.get_id_time(t.id) <= holdfast.get_id_time(p_id) + interval '1 millisecond'
      + v_job.total * interval '1 microsecond';
  return jsonb_strip_nulls(jsonb_build_object('type', v_job.type, 'owner', v_job.owner,
    'partial', nullif(v_job.allow_partial, false), 'labels', v_job.labels)) || jsonb_build_object('params',
      v_job.params,
      'tasks', v_tasks);
end $$;

-- Return an existing task as an element of `tasks` in the argument of `submit`.
create or replace function holdfast.build_task_resubmission(p_id uuid) returns jsonb
language plpgsql stable set search_path = '' as $$
begin
  return (
  select jsonb_strip_nulls(jsonb_build_object('type', k.type, 'queue', k.queue, 'priority', nullif(f.priority, 0),
    'limit_key', f.limit_key)) || k.policy || jsonb_build_object('args', f.args)
  from (
    select l.policy_id, l.priority, l.limit_key, t.args from holdfast.tasks t join holdfast.lanes l on l.id = t.lane_id
      where t.id = p_id
    union all
    select h.policy_id, h.priority, h.limit_key, h.args from holdfast.history h where h.id = p_id
  ) as f join holdfast.task_policies k on k.id = f.policy_id limit 1);
end $$;

call holdfast.grant_execute('holdfast_worker', 'build_job_resubmission');
call holdfast.grant_execute('service_role', 'build_job_resubmission');
