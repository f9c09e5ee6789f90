-- Workers as people see them: what they say about themselves, what they are told to do, and when they leave.
--
-- A worker reads its command with every exchange and every beat of its own; command_worker wakes it. `drain` claims no more,
-- finishes what runs and ends; `stop` does the same within the worker's grace and releases the rest.

-- What a worker says about itself (host, pid, slots, running, lag of its loop, memory); answers with its command.
create or replace function holdfast.beat_worker(p_worker text, p_about jsonb default null) returns text
language plpgsql security definer set search_path = '' as $$
declare
  v_id bigint := holdfast.worker_for(p_worker, null, null, null, holdfast.now());
  v_command text;
begin
  if pg_column_size(p_about) > 16384 then
    perform holdfast.refuse('HF004', 'What a worker says about itself is longer than 16 KiB.', 'about');
  end if;
  update holdfast.workers w set about = coalesce(p_about, w.about), seen_at = holdfast.now() where w.id = v_id returning w.command into v_command;
  return v_command;
end $$;

-- It has given everything back. Nobody needs to wake it any more.
create or replace function holdfast.leave_worker(p_worker text) returns void
language plpgsql security definer set search_path = '' as $$
begin
  update holdfast.workers w set sleeping = false, left_at = holdfast.now() where w.name = p_worker;
end $$;

-- Somebody saw it dead: the process that renews its leases.
create or replace function holdfast.lose_worker(p_worker text) returns void
language plpgsql security definer set search_path = '' as $$
begin
  update holdfast.workers w set sleeping = false, left_at = holdfast.now(), lost = true where w.name = p_worker and w.left_at is null;
end $$;

-- Tells one worker, by its name, what to do: drain, stop, or null to take it back. Whether the worker was there to hear it.
create or replace function holdfast.command_worker(p_worker text, p_command text default 'stop') returns boolean
language plpgsql security definer set search_path = '' as $$
declare
  v_seen timestamptz;
  v_left timestamptz;
begin
  if p_command is not null and p_command not in ('drain', 'stop') then
    perform holdfast.refuse('HF004', format('%s is no command.', quote_literal(left(p_command, 100))), 'command', 'Use drain or stop.');
  end if;
  update holdfast.workers w set command = p_command where w.name = p_worker returning w.seen_at, w.left_at into v_seen, v_left;
  if not found then
    perform holdfast.refuse('HF002', format('There is no worker %s.', quote_literal(left(p_worker, 200))), 'worker');
  end if;
  perform pg_notify('holdfast', 'command');
  return v_left is null and v_seen > holdfast.now() - interval '2 minutes';
end $$;

call holdfast.allow('holdfast_worker', 'beat_worker', 'leave_worker', 'lose_worker');
call holdfast.allow('service_role', 'beat_worker', 'leave_worker', 'lose_worker', 'command_worker');
