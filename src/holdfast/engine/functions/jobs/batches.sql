-- Batches: jobs that are counted together, with one callback after the last.
--
-- A batch is open until it is closed. A member is counted by the same change that ends it, and subtracted when it
-- runs again. The transaction that finds the batch closed and complete, under its lock, submits the callback and
-- stores its id: once, even if the batch is completed a second time.
--
-- Closing a batch and the end of its members are events of the batch, with sequence numbers of its own; joining it is
-- not.

-- Create an open batch and return its id. A user has at most as many unfinished batches as unfinished jobs.
create or replace function holdfast.open_batch(p_name text default null, p_callback jsonb default null,
  p_owner text default null)
returns uuid
language plpgsql security definer set search_path = '' as $$
declare
  v_user text := holdfast.get_end_user_id();
  v_id uuid := holdfast.new_id();
begin
  if v_user is not null and (p_callback is not null or p_owner <> v_user) then
    perform holdfast.raise_error('HF005', 'Only services may set callback and owner.',
      case when p_callback is not null then 'callback' else 'owner' end);
  end if;
  if p_callback ? 'batch' then
    perform holdfast.raise_error('HF004', 'The callback of a batch cannot be a member of a batch.', 'callback');
  end if;
  if p_callback is not null then
    perform holdfast.validate_job_request(p_callback, coalesce(v_user, p_owner), 'callback');
  end if;
  if v_user is not null then
    perform holdfast.check_batch_count(v_user, holdfast.get_user_job_limit());
  end if;
  insert into holdfast.batches (id, name, owner, callback)
  values (v_id, holdfast.check_text(p_name, 'name', 800), holdfast.check_owner(coalesce(v_user, p_owner)), p_callback);
  return v_id;
end $$;

-- Raise HF006 when the owner already has p_max_unfinished batches that are open or have unfinished jobs.
create or replace function holdfast.check_batch_count(p_owner text, p_max_unfinished integer) returns void
language plpgsql set search_path = '' as $$
declare
  v_unfinished bigint;
begin
  perform holdfast.lock_job_count(p_owner);
  select count(*) into v_unfinished from (
    select from holdfast.batches b where b.owner = p_owner and b.finished_at is null limit p_max_unfinished) as unfinished;
  if v_unfinished >= p_max_unfinished then
    perform holdfast.raise_error('HF006', format('You have %s unfinished batches, which is the maximum.', v_unfinished),
      null, 'Close batches that get no more jobs, and wait until their jobs end.');
  end if;
end $$;

-- Add p_count to the number of jobs of an open batch. Raises HF003 if the batch is closed or does not exist.
create or replace function holdfast.add_jobs_to_batch(p_batch text, p_count integer) returns void
language plpgsql set search_path = '' as $$
declare
  v_user text := holdfast.get_end_user_id();
begin
  if p_batch is null then
    return;
  end if;
  update holdfast.batches b set total = b.total + p_count
  where b.id = p_batch::uuid and b.closed_at is null and (v_user is null or b.owner = v_user);
  if not found then
    perform holdfast.raise_error('HF003', format('Batch %s does not exist or is closed.', p_batch), 'batch',
      'Open a new one.');
  end if;
end $$;

-- Close a batch, so that it takes no more jobs and completes when all its jobs have ended. Returns the batch.
create or replace function holdfast.close_batch(p_id uuid) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_user text := holdfast.get_end_user_id();
  v_now timestamptz := holdfast.now();
begin
  update holdfast.batches b set closed_at = v_now, event_seq = b.event_seq + 1
  where b.id = p_id and b.closed_at is null and (v_user is null or b.owner = v_user);
  if found then
    perform holdfast.complete_batch_if_done(p_id, v_now);
    perform holdfast.emit_batch_event(p_id, v_now);
  elsif holdfast.get_batch(p_id) is null then
    perform holdfast.raise_error('HF002', format('Batch %s does not exist.', p_id), 'id');
  end if;
  return holdfast.get_batch(p_id);
end $$;

-- Return a batch with its status, or null if it does not exist.
create or replace function holdfast.get_batch(p_id uuid) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
begin
  return (
  select to_jsonb(b) - '{callback,keep_until}'::text[] || jsonb_build_object('status', holdfast.get_batch_status(b))
  from holdfast.batches b
  where b.id = p_id and b.owner is not distinct from coalesce(holdfast.get_end_user_id(), b.owner));
end $$;

-- Add ended jobs to the counts of their batches, batches in the order of their ids. p_effects is the argument of
-- apply_task_end_effects.
create or replace function holdfast.add_ended_jobs_to_batches(p_effects jsonb, p_now timestamptz) returns void
language plpgsql set search_path = '' as $$
declare
  v_batch record;
begin
  for v_batch in
    select a.batch_id as id, count(*) as ended, count(*) filter (where a.status = 'failed') as failed,
      count(*) filter (where a.status = 'cancelled') as cancelled
    from jsonb_to_recordset(p_effects) as a (batch_id uuid, status text)
    where a.batch_id is not null group by a.batch_id order by a.batch_id
  loop
    update holdfast.batches b set ended = b.ended + v_batch.ended, failed = b.failed + v_batch.failed,
      cancelled = b.cancelled + v_batch.cancelled, event_seq = b.event_seq + 1
    where b.id = v_batch.id;
    perform holdfast.complete_batch_if_done(v_batch.id, p_now);
    perform holdfast.emit_batch_event(v_batch.id, p_now);
  end loop;
end $$;

-- Subtract an ended job that runs again from the counts of its batch, which is no longer complete.
create or replace function holdfast.subtract_restarted_job_from_batch(p_batch uuid, p_status text, p_now timestamptz)
  returns void
language plpgsql set search_path = '' as $$
begin
  update holdfast.batches b set ended = b.ended - 1, failed = b.failed - (p_status = 'failed')::int,
    cancelled = b.cancelled - (p_status = 'cancelled')::int, finished_at = null, keep_until = null,
      event_seq = b.event_seq + 1
  where b.id = p_batch;
  if found then
    perform holdfast.emit_batch_event(p_batch, p_now);
  end if;
end $$;

-- Return the status of a batch: open, running, succeeded, failed or cancelled.
create or replace function holdfast.get_batch_status(p_batch holdfast.batches) returns text
language plpgsql immutable set search_path = '' as $$
begin
  return case when p_batch.finished_at is not null then case when p_batch.failed > 0 then 'failed'
      when p_batch.cancelled > 0 and p_batch.cancelled = p_batch.total then 'cancelled' else 'succeeded' end
    when p_batch.closed_at is not null then 'running' else 'open' end;
end $$;

-- Write an event of a batch. The caller has already raised the batch's event number.
create or replace function holdfast.emit_batch_event(p_id uuid, p_now timestamptz) returns void
language plpgsql set search_path = '' as $$
begin
  insert into holdfast.events (job_id, seq, at, keep_until, owner, kind, body)
  select b.id, b.event_seq, p_now, p_now + interval '7 days', b.owner, case when b.finished_at is null then 'progress'
    else 'batch' end,
    jsonb_build_object('status', holdfast.get_batch_status(b), 'total', b.total, 'ended', b.ended, 'failed', b.failed,
      'cancelled', b.cancelled)
  from holdfast.batches b where b.id = p_id;
end $$;

-- Complete a closed batch if all its jobs have ended, and submit its callback job.
create or replace function holdfast.complete_batch_if_done(p_id uuid, p_now timestamptz) returns void
language plpgsql set search_path = '' as $$
declare
  v_batch holdfast.batches;
begin
  update holdfast.batches b set finished_at = p_now, keep_until = p_now + interval '7 days'
  where b.id = p_id and b.closed_at is not null and b.finished_at is null and b.ended >= b.total
  returning * into v_batch;
  if not found then
    return;
  end if;
  perform holdfast.enqueue_webhooks_for_batch(v_batch);
  if v_batch.callback is not null and v_batch.callback_job is null then
    -- A callback that cannot be submitted must not undo the end of the job that completed the batch.
    perform holdfast.run_isolated('batch callback', 'select holdfast.submit_batch_callbacks($1::uuid[])',
      array[p_id::text], p_now);
  end if;
end $$;

-- Submit the callback jobs of completed batches that have none yet. Returns their number.
create or replace function holdfast.submit_batch_callbacks(p_ids uuid[]) returns integer
language plpgsql set search_path = '' as $$
declare
  v_batch holdfast.batches;
  v_count integer := 0;
begin
  for v_batch in
    select * from holdfast.batches b where b.id = any (p_ids) and b.finished_at is not null and b.callback is not null
      and b.callback_job is null order by b.id for update
  loop
    update holdfast.batches b set callback_job = (holdfast.submit_for_owner(v_batch.owner,
      v_batch.callback) ->> 'id')::uuid where b.id = v_batch.id;
    v_count := v_count + 1;
  end loop;
  return v_count;
end $$;

-- Try again to submit callbacks that could not be submitted. Returns the number of submitted callbacks.
create or replace function holdfast.retry_batch_callbacks(p_now timestamptz, p_limit integer) returns integer
language plpgsql set search_path = '' as $$
begin
  return holdfast.run_isolated('batch callback', 'select holdfast.submit_batch_callbacks($1::uuid[])', array(
    select p.subject from holdfast.maintenance_problems p where p.kind = 'batch callback' and p.retry_at <= p_now
    order by p.retry_at limit p_limit), p_now);
end $$;

call holdfast.grant_execute('holdfast_worker', 'open_batch', 'close_batch', 'get_batch');
call holdfast.grant_execute('service_role', 'open_batch', 'close_batch', 'get_batch');
call holdfast.grant_execute('authenticated', 'open_batch', 'close_batch', 'get_batch');
