-- Watched jobs and batches: their events are announced on the channel `holdfast_events`, with the id of the job, and no others are,
-- so that progress which nobody looks at costs no notification.

create or replace function holdfast.watch_jobs(p_watcher text, p_jobs uuid[]) returns void
language plpgsql security definer set search_path = '' as $$
begin
  delete from holdfast.watches w where w.watcher = p_watcher and w.job_id <> all (p_jobs);
  insert into holdfast.watches (job_id, watcher, until)
  select j, p_watcher, clock_timestamp() + interval '2 minutes' from unnest(p_jobs) as j
  on conflict (job_id, watcher) do update set until = excluded.until;
end $$;

create or replace function holdfast.announce_events() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
  perform pg_notify('holdfast_events', n.job_id::text)
  from (select distinct e.job_id from new_events e) as n
  where exists (select from holdfast.watches w where w.job_id = n.job_id and w.until > clock_timestamp());
  return null;
end $$;

-- Made once: making it again would lock the table.
do $$
begin
  if not exists (select from pg_catalog.pg_trigger where tgrelid = 'holdfast.events'::regclass and tgname = 'announce_events') then
    create trigger announce_events after insert on holdfast.events
      referencing new table as new_events for each statement execute function holdfast.announce_events();
  end if;
end $$;

-- How far jobs are, by primary key: what the caller compares with what it has sent already.
create or replace function holdfast.glance(p_jobs uuid[]) returns table (id uuid, seq bigint, status text)
language plpgsql stable security definer set search_path = '' as $$
begin
  return query
  select j.id, j.event_seq, j.status from holdfast.jobs j where j.id = any (p_jobs)
  union all
  select t.id, coalesce(t.event_seq, 0), holdfast.as_job_status(t.status) from holdfast.tasks t where t.id = any (p_jobs) and t.job_id is null
  union all
  select h.id, coalesce(h.event_seq, 0), h.status from holdfast.history h where h.id = any (p_jobs) and h.job_id is null
  union all
  select b.id, b.event_seq, holdfast.batch_status(b) from holdfast.batches b where b.id = any (p_jobs);
end $$;

create or replace function holdfast.watched_events(p_jobs uuid[], p_after bigint[], p_limit integer)
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

call holdfast.allow('service_role', 'watch_jobs', 'glance', 'watched_events');
