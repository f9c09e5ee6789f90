-- Jobs that a client waits for. They are announced on `holdfast_events` when they start and end, as watched jobs are when they have an event
-- (watches.sql): a job of one task that belongs to nobody has no events, and must be heard all the same.

create or replace function holdfast.await_jobs(p_watcher text, p_jobs uuid[], p_over uuid[] default '{}') returns void
language plpgsql security definer set search_path = '' as $$
begin
  delete from holdfast.watches w where w.watcher = p_watcher and w.job_id = any (p_over);
  insert into holdfast.watches (job_id, watcher, until)
  select distinct j, holdfast.check_name(p_watcher, 'watcher'), clock_timestamp() + interval '2 minutes' from unnest(p_jobs) as j order by j
  on conflict (job_id, watcher) do update set until = excluded.until;
end $$;

-- For tasks that just started, ended or were given back; nearly always nobody waits.
create or replace function holdfast.announce_ended(p_ids uuid[]) returns void
language plpgsql set search_path = '' as $$
begin
  if exists (select from holdfast.watches) then
    perform pg_notify('holdfast_events', w.job_id::text) from holdfast.watches w where w.job_id = any (p_ids) and w.until > clock_timestamp();
  end if;
end $$;

-- A condition of the claim, which asks it only while somebody watches anything. The start of a job of several has an event.
create or replace function holdfast.announce_started(p_id uuid, p_job uuid) returns boolean
language plpgsql set search_path = '' as $$
begin
  if p_job is null then
    perform holdfast.announce_ended(array[p_id]);
  end if;
  return true;
end $$;

call holdfast.allow('holdfast_worker', 'await_jobs');
call holdfast.allow('service_role', 'await_jobs');
