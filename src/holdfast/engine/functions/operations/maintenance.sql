-- Maintenance for operators: bulk actions, pauses that end, throughput samples, and old rows of the dashboard.

-- Run the maintenance that somebody is waiting for: resume queues whose pause has ended and advance bulk actions.
-- Return the seconds until the next call is due, or null while nothing is pending. A caller that starts a bulk action
-- or a pause notifies the workers with the payload 'maintenance'.
create or replace function holdfast.run_urgent_maintenance(p_limit integer default 200) returns double precision
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
begin
  perform holdfast.resume_expired_pauses(v_now);
  if holdfast.advance_bulk_actions(p_limit) >= p_limit then
    return 0.01;
  end if;
  return (select least(
    (select 1 where exists (select from holdfast.bulk_actions b where b.status = 'running')),
    (select greatest(extract(epoch from q.paused_until - v_now), 0.05) from holdfast.queues q
      where q.paused_at < q.paused_until
      order by q.paused_until limit 1)));
end $$;

-- One bounded round of maintenance for operators. `tick` calls it, and a dashboard while somebody watches it.
create or replace function holdfast.tick_operations(p_limit integer default 1000) returns integer
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
begin
  perform holdfast.resume_expired_pauses(v_now);
  delete from holdfast.reruns r where r.at < v_now - interval '35 days';
  delete from holdfast.login_links k where k.expires_at < v_now - interval '1 day';
  delete from holdfast.bulk_actions b where b.id in (
    select o.id from holdfast.bulk_actions o where o.finished_at < v_now - interval '30 days' limit 10
      for update skip locked);
  return holdfast.advance_bulk_actions(least(p_limit, 200)) + holdfast.record_throughput_samples(v_now);
end $$;

call holdfast.grant_execute('holdfast_worker', 'tick_operations', 'run_urgent_maintenance');
call holdfast.grant_execute('service_role', 'tick_operations', 'run_urgent_maintenance');
