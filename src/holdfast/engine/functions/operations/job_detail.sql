-- Job detail: everything that a dashboard shows about one job. Every result is bounded.

-- Return a job with up to p_max_tasks tasks, their dependencies and attempts, for a timeline. Running and failed tasks
-- come first when there are more. Payloads are left out.
create or replace function holdfast.get_job_detail(p_id uuid, p_max_tasks integer default 500) returns jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
declare
  v_row jsonb := holdfast.build_job_rows(array[p_id]) -> 0;
  v_ids uuid[];
begin
  if v_row is null then
    return null;
  end if;
  if (v_row ->> 'single')::boolean then
    v_ids := array[p_id];
  else
    v_ids := array(select f.id from (
      select t.id, t.status from holdfast.tasks t where t.job_id = p_id
      union all select h.id, h.status from holdfast.history h where h.job_id = p_id) as f
      order by f.status not in ('running', 'failed'), f.status = 'succeeded', f.id limit p_max_tasks);
  end if;
  return v_row || jsonb_build_object(
    'tasks', (select jsonb_agg(to_jsonb(t) - '{args,output,labels,event_seq,job_id,single,batch_id,owner}'::text[]
        || jsonb_build_object('worker', (select w.name from holdfast.workers w where w.id = t.worker_id),
          'error', t.error - 'traceback') order by t.id)
      from holdfast.all_tasks t where t.id = any (v_ids)),
    'edges', (select coalesce(jsonb_agg(jsonb_build_array(e.parent_id, e.child_id)), '[]') from (
      select e.parent_id, e.child_id from holdfast.dependencies e where e.job_id = p_id and e.parent_id = any (v_ids)
        and e.child_id = any (v_ids)
      limit 5000) as e),
    'attempts', (select coalesce(jsonb_agg(to_jsonb(a) order by a.ended_at), '[]') from (
      select a.task_id, a.attempt, a.outcome, a.started_at, a.ended_at, a.error_type from holdfast.attempts a
      where a.task_id = any (v_ids) order by a.ended_at desc limit 2000) as a));
end $$;

-- Return the arguments, output and error of one task.
create or replace function holdfast.get_task_payload(p_id uuid) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
begin
  return (select jsonb_build_object('id', t.id, 'name', t.name, 'type', t.type, 'args', t.args, 'output', t.output,
    'error', holdfast.add_traceback(t.error, t.status, t.id))
    from holdfast.all_tasks t where t.id = p_id limit 1);
end $$;

-- List the failed attempts of all tasks of a job with their errors, newest first.
create or replace function holdfast.list_job_attempts(p_id uuid, p_limit integer default 50) returns setof jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
begin
  return query
  select (to_jsonb(a) - '{keep_until,owner,job_id,worker_id}'::text[]) || jsonb_build_object(
    'worker', w.name, 'version', w.report ->> 'version', 'host', w.report ->> 'host',
    'name', (select t.name from holdfast.all_tasks t where t.id = a.task_id limit 1))
  from (
    select a.* from holdfast.attempts a where a.task_id in (
      select p_id union all select t.id from holdfast.tasks t where t.job_id = p_id
      union all select h.id from holdfast.history h where h.job_id = p_id)
    order by a.ended_at desc limit least(greatest(p_limit, 1), 500)) as a
  left join holdfast.workers w on w.id = a.worker_id
  order by a.ended_at desc;
end $$;

-- Record that p_by started job p_new as a rerun of job p_old.
create or replace function holdfast.record_job_rerun(p_old uuid, p_new uuid, p_by text) returns void
language plpgsql security definer set search_path = '' as $$
begin
  insert into holdfast.reruns (new_job_id, old_job_id, started_by, at) values (p_new, p_old, p_by, holdfast.now())
    on conflict do nothing;
end $$;

-- Return {of, to}: the job that this job is a rerun of, and the latest reruns of this job.
create or replace function holdfast.get_rerun_links(p_id uuid) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
begin
  return jsonb_build_object('of', (select r.old_job_id from holdfast.reruns r where r.new_job_id = p_id),
    'to', (select coalesce(jsonb_agg(r.new_job_id order by r.new_job_id desc), '[]') from (
      select r.new_job_id from holdfast.reruns r where r.old_job_id = p_id order by r.new_job_id desc limit 10) as r));
end $$;

call holdfast.grant_execute('holdfast_worker', 'get_job_detail', 'get_task_payload', 'list_job_attempts',
  'get_rerun_links');
call holdfast.grant_execute('service_role', 'get_job_detail', 'get_task_payload', 'list_job_attempts',
  'get_rerun_links',
  'record_job_rerun');
