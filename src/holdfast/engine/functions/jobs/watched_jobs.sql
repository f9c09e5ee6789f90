-- Watched jobs and batches: a notification on channel `holdfast_events`, with the id of the job, announces their
-- events. Events of other jobs are not announced, so that progress that no one watches costs no notification.
--
-- Clients that wait for a job also watch it. A job of one task without an owner has no events, so its start and its
-- end are announced by the functions that cause them.

-- Replace the set of jobs that a watcher watches, for two minutes.
create or replace function holdfast.watch_jobs(p_watcher text, p_jobs uuid[]) returns void
language plpgsql security definer set search_path = '' as $$
begin
  delete from holdfast.watched_jobs w where w.watcher = p_watcher and w.job_id <> all (p_jobs);
  insert into holdfast.watched_jobs (job_id, watcher, until)
  select j, p_watcher, clock_timestamp() + interval '2 minutes' from unnest(p_jobs) as j
  on conflict (job_id, watcher) do update set until = excluded.until;
end $$;

-- Watch these jobs for two minutes, and stop watching the jobs in p_done.
create or replace function holdfast.register_job_waiter(p_watcher text, p_jobs uuid[], p_done uuid[] default '{}')
  returns void
language plpgsql security definer set search_path = '' as $$
begin
  delete from holdfast.watched_jobs w where w.watcher = p_watcher and w.job_id = any (p_done);
  insert into holdfast.watched_jobs (job_id, watcher, until)
  select distinct j, holdfast.check_name(p_watcher, 'watcher'), clock_timestamp() + interval '2 minutes'
    from unnest(p_jobs) as j order by j
  on conflict (job_id, watcher) do update set until = excluded.until;
end $$;

-- Notify watchers of tasks that just started, ended or were released. Most of the time no one watches.
create or replace function holdfast.notify_job_waiters(p_ids uuid[]) returns void
language plpgsql set search_path = '' as $$
begin
  if exists (select from holdfast.watched_jobs) then
    perform pg_notify('holdfast_events', w.job_id::text) from holdfast.watched_jobs w where w.job_id = any (p_ids)
      and w.until > clock_timestamp();
  end if;
end $$;

-- Notify watchers that a job of one task started. Always returns true: a claim calls it as a condition, only while any
-- job is watched. The start of a job of several tasks has an event.
create or replace function holdfast.notify_task_started(p_id uuid, p_job uuid) returns boolean
language plpgsql set search_path = '' as $$
begin
  if p_job is null then
    perform holdfast.notify_job_waiters(array[p_id]);
  end if;
  return true;
end $$;

-- Notify watchers of new events of watched jobs (trigger).
create or replace function holdfast.notify_event_watchers() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
  perform pg_notify('holdfast_events', n.job_id::text)
  from (select distinct e.job_id from new_events e) as n
  where exists (select from holdfast.watched_jobs w where w.job_id = n.job_id and w.until > clock_timestamp());
  return null;
end $$;

-- Return the last event number and the status of jobs, by primary key. The caller compares the number with the last
-- event that it has sent.
create or replace function holdfast.get_last_event_numbers(p_jobs uuid[]) returns table (id uuid, seq bigint,
  status text)
language plpgsql stable security definer set search_path = '' as $$
begin
  return query
  select j.id, j.event_seq, j.status from holdfast.jobs j where j.id = any (p_jobs)
  union all
  select t.id, coalesce(t.event_seq, 0), holdfast.convert_task_status_to_job_status(t.status) from holdfast.tasks t
    where t.id = any (p_jobs) and t.job_id is null
  union all
  select h.id, coalesce(h.event_seq, 0), h.status from holdfast.history h where h.id = any (p_jobs) and h.job_id is null
  union all
  select b.id, b.event_seq, holdfast.get_batch_status(b) from holdfast.batches b where b.id = any (p_jobs);
end $$;

-- List events of several jobs, each after the sequence number that p_after has for it.
create or replace function holdfast.list_watched_events(p_jobs uuid[], p_after bigint[], p_limit integer)
returns table (job_id uuid, seq bigint, at timestamptz, kind text, body jsonb)
language plpgsql stable security definer set search_path = '' as $$
begin
  return query
  select u.job_id, e.seq, e.at, e.kind, e.body
  from unnest(p_jobs, p_after) as u (job_id, after)
  cross join lateral (
    select i.seq, i.at, i.kind, i.body from holdfast.events i
    where i.job_id = u.job_id and i.seq > u.after order by i.seq limit p_limit) as e
  order by u.job_id, e.seq;
end $$;

-- Created only once: to create it again would lock the table.
do $$
begin
  if not exists (
    select from pg_catalog.pg_trigger where tgrelid = 'holdfast.events'::regclass and tgname = 'notify_event_watchers')
  then
    create trigger notify_event_watchers after insert on holdfast.events
      referencing new table as new_events for each statement execute function holdfast.notify_event_watchers();
  end if;
end $$;

call holdfast.grant_execute('holdfast_worker', 'register_job_waiter');
call holdfast.grant_execute('service_role', 'register_job_waiter', 'watch_jobs', 'get_last_event_numbers',
  'list_watched_events');
