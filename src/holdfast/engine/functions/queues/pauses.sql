-- Pauses with an end.

-- Pause a queue. It resumes automatically at p_until.
create or replace function holdfast.pause_queue_until(
  p_queue text, p_until timestamptz, p_reason text default null, p_by text default null) returns void
language plpgsql security definer set search_path = '' as $$
begin
  if p_until is not null and p_until <= holdfast.now() then
    perform holdfast.raise_error('HF004', 'until must be in the future.', 'until');
  end if;
  perform holdfast.pause_queue(p_queue, p_reason, p_by);
  update holdfast.queues q set paused_until = p_until where q.name = p_queue;
  perform pg_notify('holdfast', 'maintenance');
end $$;

-- Resume the queues whose pause has ended.
create or replace function holdfast.resume_expired_pauses(p_now timestamptz) returns void
language plpgsql set search_path = '' as $$
declare
  v_queue text;
begin
  for v_queue in
    select q.name from holdfast.queues q where q.paused_until <= p_now and q.paused_at < q.paused_until limit 100
      for update skip locked
  loop
    perform holdfast.resume_queue(v_queue);
  end loop;
end $$;

call holdfast.grant_execute('holdfast_worker', 'pause_queue_until');
call holdfast.grant_execute('service_role', 'pause_queue_until');
