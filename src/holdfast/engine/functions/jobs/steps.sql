-- Steps: saved results of parts of a task, so that its next attempt need not do them again.

-- Return the saved results of the steps of a running task: {name: value}.
create or replace function holdfast.get_step_results(p_task_id uuid, p_attempt integer, p_nonce bigint) returns jsonb
language plpgsql security definer set search_path = '' as $$
begin
  perform holdfast.assert_lease(p_task_id, p_attempt, p_nonce);
  -- A step is kept with its files or not at all.
  delete from holdfast.step_results s where s.task_id = p_task_id and exists (
    select from holdfast.artifacts f where f.task_id = p_task_id and f.step_name = s.name
      and (f.status in ('deleting', 'gone') or f.expires_at <= holdfast.now()));
  return (select coalesce(jsonb_object_agg(s.name, s.value), '{}') from holdfast.step_results s
    where s.task_id = p_task_id);
end $$;

-- Save the result of a step and return the stored result: the first one stays.
create or replace function holdfast.save_step_result(p_task_id uuid, p_attempt integer, p_nonce bigint, p_name text,
  p_value jsonb)
returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_value jsonb;
begin
  perform holdfast.assert_lease(p_task_id, p_attempt, p_nonce);
  if pg_column_size(p_value) > 262144 then
    perform holdfast.raise_error('HF004', 'The value of a step is longer than 256 KiB.', 'value',
      'Save it as an artifact and keep its key.');
  end if;
  insert into holdfast.step_results (task_id, name, job_id, value, attempt, at)
  select p_task_id, holdfast.check_name(p_name, 'name'), coalesce(t.job_id, t.id), p_value, p_attempt, holdfast.now()
  from holdfast.tasks t where t.id = p_task_id
  on conflict do nothing;
  select s.value into v_value from holdfast.step_results s where s.task_id = p_task_id and s.name = p_name;
  return v_value;
end $$;

-- Save the result of a step that saved files. The files belong to the step if the result of this attempt is the stored
-- one.
create or replace function holdfast.save_step_result_with_files(
  p_task_id uuid, p_attempt integer, p_nonce bigint, p_name text, p_value jsonb, p_files uuid[]) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_value jsonb := holdfast.save_step_result(p_task_id, p_attempt, p_nonce, p_name, p_value);
begin
  update holdfast.artifacts f set step_name = p_name
  where f.id = any (p_files) and f.task_id = p_task_id and f.attempt = p_attempt and f.nonce = p_nonce
    and f.status = 'staged'
    and exists (select from holdfast.step_results s where s.task_id = p_task_id and s.name = p_name
      and s.attempt = p_attempt);
  return v_value;
end $$;

call holdfast.grant_execute('holdfast_worker', 'get_step_results', 'save_step_result', 'save_step_result_with_files');
call holdfast.grant_execute('service_role', 'get_step_results', 'save_step_result', 'save_step_result_with_files');
