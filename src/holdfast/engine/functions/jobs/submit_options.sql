-- Read and check the options of a submitted job or task.

-- Return the retry policy of a task: only the options that were submitted.
create or replace function holdfast.parse_retry_policy(p_task jsonb) returns jsonb
language sql immutable parallel safe as $$
  select case when p_task operator(pg_catalog.?|)
    '{attempts,base_s,cap_s,jitter,timeout_s,lease_s,crashes}'::pg_catalog.text[]
  then pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object(
    'attempts', p_task -> 'attempts', 'base_s', p_task -> 'base_s', 'cap_s', p_task -> 'cap_s',
    'jitter', p_task -> 'jitter', 'timeout_s', p_task -> 'timeout_s', 'lease_s', p_task -> 'lease_s',
    'crashes', p_task -> 'crashes'))
  else '{}'::pg_catalog.jsonb end
$$;

-- Return when a task is due: by its own run_at or delay_s, else by those of the job, else now.
create or replace function holdfast.parse_due_time(p_task jsonb, p_job jsonb, p_now timestamptz) returns timestamptz
language plpgsql stable set search_path = '' as $$
begin
  if not p_task ?| '{run_at,delay_s}' and p_job is not null then
    p_task := p_job;
  end if;
  if not p_task ?| '{run_at,delay_s}' then
    return p_now;
  end if;
  return coalesce(
    holdfast.parse_time_field(p_task, 'run_at'),
    p_now + holdfast.parse_number_field(p_task, 'delay_s', 0, 315360000) * interval '1 second', p_now);
end $$;

-- Return the arguments of a task. Raise HF004 if they are longer than 256 KiB.
create or replace function holdfast.parse_task_args(p_task jsonb) returns jsonb
language plpgsql immutable set search_path = '' as $$
begin
  if pg_column_size(p_task -> 'args') > 262144 then
    perform holdfast.raise_error('HF004', format('args of %s are longer than 256 KiB.', p_task ->> 'type'), 'args',
      'Save the payload as an artifact and pass its key instead.');
  end if;
  return p_task -> 'args';
end $$;

-- Return the id of the lane of a submitted task.
create or replace function holdfast.find_lane_for_task(p_task jsonb, p_job jsonb, p_owner text) returns bigint
language plpgsql set search_path = '' as $$
begin
  if jsonb_typeof(p_task) is distinct from 'object' then
    perform holdfast.raise_error('HF004', 'A task must be a JSON object.', 'tasks');
  end if;
  return holdfast.find_or_create_lane(
    coalesce(p_task ->> 'queue', p_job ->> 'queue', 'default'),
    holdfast.check_name(p_task ->> 'type', 'type'),
    coalesce(holdfast.parse_number_field(p_task, 'priority', -100, 100), holdfast.parse_number_field(p_job, 'priority',
      -100, 100),
      0)::smallint,
    coalesce(p_task ->> 'limit_key', p_job ->> 'limit_key'), holdfast.parse_retry_policy(p_task), p_owner);
end $$;

-- Raise HF005 if an end user submits a task type that the option `public_types` does not list.
create or replace function holdfast.check_user_may_submit_types(p_job jsonb) returns void
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
      perform holdfast.raise_error('HF005', format('Users may not submit jobs of type %s.', v_type), 'type',
        'Add the type to the option public_types, or submit it from a service.');
    end if;
  end loop;
end $$;

-- Check debounce_s and throttle_s, which need a unique key, and return the job. A debounced job gets debounce_s as its
-- delay_s: it starts after this delay unless another job replaces it first.
create or replace function holdfast.apply_debounce_options(p_job jsonb) returns jsonb
language plpgsql immutable set search_path = '' as $$
begin
  if p_job ->> 'unique_key' is null then
    perform holdfast.raise_error('HF004', 'debounce_s and throttle_s need a unique_key.', 'unique_key');
  end if;
  if p_job ? 'debounce_s' and p_job ?| '{tasks,throttle_s,run_at,delay_s}' then
    perform holdfast.raise_error('HF004',
      'debounce_s is only for a job of one task without throttle_s, run_at and delay_s.', 'debounce_s');
  end if;
  perform holdfast.parse_number_field(p_job, 'debounce_s', 0.001, 315360000),
    holdfast.parse_number_field(p_job, 'throttle_s', 0.001, 315360000);
  return p_job || case when p_job ? 'debounce_s' then jsonb_build_object('delay_s', p_job -> 'debounce_s')
    else '{}' end;
end $$;

-- Return the hash of a job without its key and trace context. Two submits with the same key must have the same hash.
create or replace function holdfast.hash_job_body(p_job jsonb) returns bytea
language plpgsql immutable set search_path = '' as $$
begin
  p_job := p_job - 'key';
  if jsonb_typeof(p_job -> 'labels') = 'object' then
    p_job := p_job #- '{labels,traceparent}';
    p_job := case when p_job -> 'labels' = '{}' then p_job - 'labels' else p_job end;
  end if;
  return sha256(convert_to(p_job::text, 'UTF8'));
end $$;
