-- Stored job requests: jobs that a later transaction submits, such as the callback of a batch or the job of a
-- schedule.
--
-- The transaction that submits them belongs to somebody else: to a worker that records an outcome, or to maintenance.
-- So a request is validated when it is stored, by the code that submits it. Every function that stores a request calls
-- validate_job_request, whichever interface its caller uses.

-- Raise HF004 if a job cannot be submitted for an owner. p_field names the argument that holds the job. The job is
-- inserted and rolled back, so that all rules of submit apply, except quotas and keys, which depend on the time.
create or replace function holdfast.validate_job_request(p_job jsonb, p_owner text, p_field text) returns void
language plpgsql set search_path = '' as $$
begin
  if jsonb_typeof(p_job) is distinct from 'object' then
    perform holdfast.raise_error('HF004', format('%s must be a job: a JSON object with a type or tasks.', p_field),
      p_field);
  end if;
  if p_job ? 'tasks' and (jsonb_typeof(p_job -> 'tasks') <> 'array' or p_job -> 'tasks' = '[]') then
    perform holdfast.raise_error('HF004', 'tasks must be a list of at least one task.', 'tasks');
  end if;
  if p_job -> 'check' = 'true' then
    perform holdfast.validate_job_args(p_job);
  end if;
  if p_job ?| '{debounce_s,throttle_s}' then
    perform holdfast.apply_debounce_options(p_job);
  end if;
  perform holdfast.check_owner(p_owner), holdfast.check_text(p_job ->> 'key', 'key', 1000),
    holdfast.check_text(p_job ->> 'unique_key', 'unique_key', 1000);
  begin
    perform holdfast.submit_for_owner(p_owner, p_job);
    raise exception using errcode = 'HF999', message = 'The job is valid.';
  exception
    when sqlstate 'HF999' then
      null; -- the inserted job is rolled back
    when data_exception or integrity_constraint_violation or program_limit_exceeded then
      perform holdfast.raise_error('HF004', format('%s cannot be submitted: %s.', p_field, rtrim(sqlerrm, '.')),
        p_field);
  end;
end $$;

-- Submit a job that the engine itself creates for an owner.
create or replace function holdfast.submit_for_owner(p_owner text, p_job jsonb) returns jsonb
language plpgsql set search_path = '' as $$
declare
  v_id uuid := holdfast.new_id();
  v_now timestamptz := holdfast.now();
begin
  perform pg_current_xact_id();
  if p_job ? 'tasks' then
    perform holdfast.insert_graph_job(v_id, p_job, p_owner, v_now);
  else
    perform holdfast.insert_single_task_job(v_id, p_job, null, p_owner, v_now);
  end if;
  return jsonb_build_object('id', v_id);
end $$;
