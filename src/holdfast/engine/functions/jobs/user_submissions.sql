-- Submissions of end users: which types and options they may use, and how many unfinished jobs they may have. The
-- rules hold for every way to submit as a user, because `submit` and `retry_job` enforce them.

-- Raise HF005 unless a user may submit this job: public types, only for themselves, with options that decide what
-- happens to their own job. How a job runs (queue, priority, retry policy, limits) is the application's choice.
create or replace function holdfast.check_user_submission(p_job jsonb, p_user text) returns void
language plpgsql stable set search_path = '' as $$
declare
  v_max_tasks constant integer := 100;
  v_max_bytes constant integer := 1048576;
  v_task_options constant text[] := '{type,name,args,after,weight,run_at,delay_s,expires_at}';
  v_task jsonb;
begin
  if p_job ->> 'owner' <> p_user then
    perform holdfast.raise_error('HF005', 'You can submit jobs only for yourself: owner must be your own id.', 'owner');
  end if;
  if pg_column_size(p_job) > v_max_bytes then
    perform holdfast.raise_error('HF004', format('A job must not be longer than %s bytes.', v_max_bytes), 'job');
  end if;
  perform holdfast.check_user_may_submit_types(p_job);
  perform holdfast.check_user_options(p_job, v_task_options
    || '{owner,key,unique_key,debounce_s,throttle_s,labels,params,partial,batch,tasks,check}');
  if jsonb_typeof(p_job -> 'tasks') is distinct from 'array' then
    return;
  end if;
  if jsonb_array_length(p_job -> 'tasks') > v_max_tasks then
    perform holdfast.raise_error('HF005', format('Users may submit at most %s tasks in one job.', v_max_tasks), 'tasks',
      'Submit several jobs.');
  end if;
  for v_task in select t from jsonb_array_elements(p_job -> 'tasks') as t where jsonb_typeof(t) = 'object' loop
    perform holdfast.check_user_options(v_task, v_task_options);
  end loop;
end $$;

-- Raise HF005 if a user sets an option that is not in the list. A queue may be named if it is the queue of the type.
create or replace function holdfast.check_user_options(p_options jsonb, p_allowed text[]) returns void
language plpgsql stable set search_path = '' as $$
declare
  v_option text;
begin
  select o into v_option from jsonb_object_keys(p_options - p_allowed) as o
  where o <> 'queue' or p_options ->> 'queue' is distinct from holdfast.find_registered_queue(p_options ->> 'type')
  order by o limit 1;
  if found then
    perform holdfast.raise_error('HF005', format('Users may not set the option %s of a job.',
      quote_ident(left(v_option, 60))), left(v_option, 60),
      'Leave it out, or submit the job from a service.');
  end if;
end $$;

-- Return the queue that workers registered for a task type, or null.
create or replace function holdfast.find_registered_queue(p_type text) returns text
language plpgsql stable set search_path = '' as $$
begin
  return (select t.queue from holdfast.task_types t where t.name = p_type);
end $$;

-- Return the job of a user with the registered queue of each task. Types that no worker has registered go to the
-- queue `default`.
create or replace function holdfast.add_registered_queues(p_job jsonb) returns jsonb
language plpgsql stable set search_path = '' as $$
begin
  if jsonb_typeof(p_job -> 'tasks') is distinct from 'array' then
    return p_job || jsonb_build_object('queue', coalesce(holdfast.find_registered_queue(p_job ->> 'type'), 'default'));
  end if;
  return p_job || jsonb_build_object('tasks', (
    select coalesce(jsonb_agg(case when jsonb_typeof(t.body) = 'object' then t.body || jsonb_build_object('queue',
      coalesce(holdfast.find_registered_queue(t.body ->> 'type'), 'default')) else t.body end order by t.n), '[]')
    from jsonb_array_elements(p_job -> 'tasks') with ordinality as t (body, n)));
end $$;

-- Return how many unfinished jobs a user may have. The HTTP API passes its setting user_jobs with each transaction. For
-- everybody else the option user_jobs applies, 1000 by default.
create or replace function holdfast.get_user_job_limit() returns integer
language plpgsql stable set search_path = '' as $$
begin
  return coalesce(nullif(current_setting('holdfast.user_jobs', true), '')::integer,
    (select (o.value #>> '{}')::integer from holdfast.options o where o.name = 'user_jobs'), 1000);
end $$;

-- Make concurrent submissions of an owner wait for each other until the end of the transaction, so that they cannot
-- both take the last place.
create or replace function holdfast.lock_job_count(p_owner text) returns void
language plpgsql set search_path = '' as $$
begin
  perform pg_advisory_xact_lock(1213154901, hashtext(p_owner));
end $$;

-- Return how many unfinished jobs an owner has; counting stops at p_max of each kind. The job p_except is not counted.
-- Only indexes: a plan that reads the tables is chosen while few users have most of the jobs, and stays.
create or replace function holdfast.count_unfinished_jobs(p_owner text, p_max integer, p_except uuid default null)
returns bigint
language plpgsql set search_path = '' set enable_seqscan = off set enable_bitmapscan = off as $$
begin
  return (select count(*) from (
    (select from holdfast.tasks t where t.owner = p_owner and t.job_id is null and t.id is distinct from p_except
      limit p_max)
    union all
    (select from holdfast.jobs j where j.owner = p_owner and j.finished_at is null and j.id is distinct from p_except
      limit p_max)
  ) as unfinished);
end $$;

-- Raise HF006 when the owner already has p_max_unfinished unfinished jobs. The job p_except is not counted: it is about
-- to run again.
create or replace function holdfast.check_job_count(p_owner text, p_max_unfinished integer, p_except uuid default null)
returns void
language plpgsql set search_path = '' as $$
declare
  v_unfinished bigint := holdfast.count_unfinished_jobs(p_owner, p_max_unfinished, p_except);
begin
  if v_unfinished >= p_max_unfinished then
    perform holdfast.raise_error('HF006', format('You have %s unfinished jobs, which is the maximum.', v_unfinished),
      null, 'Wait until some of them end, or cancel some.');
  end if;
end $$;

-- Raise HF006 when the owner already has p_max_unfinished unfinished jobs. For services that submit for a user. A
-- submission whose idempotency key exists already returns its job, so it is not limited.
create or replace function holdfast.check_unfinished_job_limit(p_owner text, p_max_unfinished integer,
  p_key text default null)
returns void
language plpgsql security definer set search_path = '' as $$
begin
  if p_key is not null
    and exists (select from holdfast.idempotency_keys k where k.scope = 'key:' || p_owner and k.key = p_key)
  then
    return;
  end if;
  perform holdfast.lock_job_count(p_owner);
  perform holdfast.check_job_count(p_owner, p_max_unfinished);
end $$;

-- Submit a job for a user, or raise HF006 when the user has p_max_unfinished unfinished jobs, in one round trip. For
-- services that decide themselves what users may submit.
create or replace function holdfast.submit_within_job_limit(
  p_job jsonb, p_owner text, p_max_unfinished integer) returns jsonb
language plpgsql set search_path = '' as $$
begin
  perform holdfast.check_unfinished_job_limit(p_owner, p_max_unfinished, p_job ->> 'key');
  return holdfast.submit(p_job || jsonb_build_object('owner', p_owner));
end $$;

-- The same for jobs of the types that users may submit; HF005 for other types. The service may choose the queue.
create or replace function holdfast.submit_public_job(p_job jsonb, p_owner text, p_max_unfinished integer) returns jsonb
language plpgsql security definer set search_path = '' as $$
begin
  perform holdfast.check_user_may_submit_types(p_job);
  return holdfast.submit_within_job_limit(p_job, p_owner, p_max_unfinished);
end $$;

call holdfast.grant_execute('service_role', 'check_unfinished_job_limit', 'submit_within_job_limit',
  'submit_public_job');
