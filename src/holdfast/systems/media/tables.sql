-- Tables of the media system: shares and the progress of their downloads. `{}` is the schema.
-- Running this script again changes nothing. A table `shares` that exists keeps its rows and gets the missing columns.

create table if not exists {}.shares (
  id uuid primary key default gen_random_uuid(),
  user_id uuid not null,
  url text not null,
  media_url text,
  media_type text,
  platform_data jsonb not null default '{}',
  download_status varchar(20) not null default 'pending',
  download_attempts integer not null default 0,
  download_error text,
  download_started_at timestamptz,
  download_completed_at timestamptz,
  created_at timestamptz not null default now()
);

-- A table from before the downloads were asynchronous: what has a file is complete, the rest is downloaded.
do $$
begin
  if (select format_type(a.atttypid, null) from pg_catalog.pg_attribute a
      where a.attrelid = '{}.shares'::regclass and a.attname = 'id') is distinct from 'uuid' then
    raise exception using errcode = 'HF004', message = 'The column id of the table shares must be a uuid.',
      hint = 'Install the media system into another schema with the setting systems_schema.';
  end if;
  alter table {}.shares add column if not exists media_url text, add column if not exists media_type text,
    add column if not exists platform_data jsonb default '{}', add column if not exists created_at timestamptz
      not null default now();
  if not exists (select from pg_catalog.pg_attribute a where a.attrelid = '{}.shares'::regclass
      and a.attname = 'download_status' and not a.attisdropped) then
    alter table {}.shares add column download_status varchar(20) not null default 'pending';
    update {}.shares set download_status = 'completed' where media_url is not null;
  end if;
  alter table {}.shares add column if not exists download_attempts integer not null default 0,
    add column if not exists download_error text,
    add column if not exists download_started_at timestamptz,
    add column if not exists download_completed_at timestamptz;
end $$;

-- The columns below are not part of the original table.
--   run_after        when a share with the status `retry` may be tried again
--   slot_taken_at    when a download was started; it counts as running until the attempt has ended
--   job_id, download_task_id   the job of the last start
--   file_id          the downloaded file; the files that are made of it belong to the same job
--   poster_id        the picture that lists show
--   uses_ytdlp       the link is a page or a playlist: only a few of these are downloaded at once
do $$
begin
  if not exists (select from pg_catalog.pg_attribute a where a.attrelid = '{}.shares'::regclass
      and a.attname = 'processing_status' and not a.attisdropped) then
    alter table {}.shares add column processing_status text not null default 'skipped',
      add column transcript_status text not null default 'skipped';
    alter table {}.shares alter column processing_status set default 'waiting',
      alter column transcript_status set default 'waiting';
    -- Downloads of another system were interrupted when this one took over the table.
    update {}.shares set processing_status = 'waiting', transcript_status = 'waiting',
      download_status = case when download_status = 'processing' then 'retry' else download_status end
    where download_status in ('pending', 'processing', 'retry');
  end if;
  alter table {}.shares add column if not exists premium boolean not null default false,
    add column if not exists url_key bytea,
    add column if not exists url_host text,
    add column if not exists options jsonb not null default '{}',
    add column if not exists run_after timestamptz,
    add column if not exists slot_taken_at timestamptz,
    add column if not exists job_id uuid,
    add column if not exists download_task_id uuid,
    add column if not exists file_id uuid,
    add column if not exists poster_id uuid,
    add column if not exists uses_ytdlp boolean not null default false,
    add column if not exists processing_error text,
    add column if not exists transcript_error text,
    add column if not exists media_info jsonb,
    add column if not exists updated_at timestamptz not null default clock_timestamp();
end $$;

create index if not exists idx_shares_download_queue on {}.shares (download_status, created_at)
  where download_status in ('pending', 'retry');
create index if not exists idx_shares_download_status on {}.shares (download_status);
create index if not exists shares_waiting on {}.shares (premium, download_status, created_at, id)
  where download_status in ('pending', 'retry') and slot_taken_at is null;
create index if not exists shares_started on {}.shares (slot_taken_at) where slot_taken_at is not null;
create index if not exists shares_unfinished on {}.shares (job_id) where download_status = 'completed'
  and (processing_status in ('waiting', 'processing') or transcript_status in ('waiting', 'processing'));
create index if not exists shares_user on {}.shares (user_id, created_at desc, id);
create index if not exists shares_user_updated on {}.shares (user_id, updated_at);
create index if not exists shares_user_url on {}.shares (user_id, url_key);
create index if not exists shares_created on {}.shares (created_at);
create index if not exists shares_completed on {}.shares (download_completed_at) where download_status = 'completed';

-- How far a running job is. It changes twice a second and may be lost, so it has a table of its own, with few rows.
create unlogged table if not exists {}.share_progress (
  share_id uuid primary key references {}.shares on delete cascade,
  user_id uuid not null,
  phase text not null,
  bytes bigint not null,
  total bigint,
  speed double precision,
  percent double precision,
  updated_at timestamptz not null default clock_timestamp()
) with (fillfactor = 50);
create index if not exists share_progress_user on {}.share_progress (user_id);

-- How many shares a user has added in each hour. Deleting a share does not give its place back.
create table if not exists {}.share_usage (
  user_id uuid not null,
  hour timestamptz not null,
  added integer not null,
  primary key (user_id, hour)
);

-- One row: how many downloads were started. Whoever holds its lock starts downloads.
create table if not exists {}.share_starts (
  id boolean primary key default true check (id),
  started bigint not null default 0
);
insert into {}.share_starts default values on conflict do nothing;

-- Prepare a row that is new or waits again, whoever writes it: the host, the key of the URL, and a new beginning for a
-- share that is set to `pending` or `retry` after it had ended.
create or replace function {}.prepare_share() returns trigger
language plpgsql security definer set search_path = '' as $$
declare
  v_source text := coalesce(new.platform_data ->> 'originalMediaUrl', new.url);
begin
  new.updated_at := clock_timestamp();
  new.platform_data := coalesce(new.platform_data, '{}');
  new.url_key := case when tg_op = 'INSERT' then coalesce(new.url_key, sha256(convert_to(new.url, 'UTF8')))
    else new.url_key end;
  new.url_host := left(lower(substring(v_source from '^[A-Za-z]+://(?:[^/?#@]*@)?(\[[^]]*\]|[^/?#:]+)')), 200);
  if tg_op = 'INSERT' then
    new.job_id := null; new.download_task_id := null; new.slot_taken_at := null; new.file_id := null;
    new.poster_id := null;
    return new;
  end if;
  if new.download_status is distinct from old.download_status and (new.download_status = 'pending'
    or (new.download_status = 'retry' and old.download_status <> 'processing')) then
    new.download_attempts := case when new.download_status = 'pending' then 0 else new.download_attempts end;
    new.download_error := null; new.download_started_at := null; new.download_completed_at := null;
    new.run_after := null; new.slot_taken_at := null; new.job_id := null; new.download_task_id := null;
    new.file_id := null; new.media_url := null; new.media_info := null; new.poster_id := null; new.uses_ytdlp := false;
    new.processing_status := 'waiting'; new.processing_error := null;
    new.transcript_status := 'waiting'; new.transcript_error := null;
    delete from {}.share_progress p where p.share_id = new.id;
  elsif new.download_status = 'completed' and new.processing_status not in ('waiting', 'processing')
    and new.transcript_status not in ('waiting', 'processing') then
    delete from {}.share_progress p where p.share_id = new.id;
  end if;
  return new;
end $$;
drop trigger if exists prepare_share on {}.shares;
create trigger prepare_share before insert or update on {}.shares
  for each row execute function {}.prepare_share();

-- Cancel the job and delete the files together with their share, and the old files of a share that is downloaded again.
create or replace function {}.delete_share_files() returns trigger
language plpgsql security definer set search_path = '' as $$
declare
  v_job jsonb;
begin
  if tg_op = 'DELETE' or new.job_id is distinct from old.job_id then
    v_job := holdfast.get_job(old.job_id);
    if v_job ->> 'owner' = old.user_id::text then
      perform holdfast.cancel_job(old.job_id, 'The share was deleted.');
      perform holdfast.delete_artifact((f ->> 'id')::uuid)
        from holdfast.list_artifacts(jsonb_build_object('job', old.job_id), null, 1000) as f;
    end if;
  end if;
  return null;
end $$;
drop trigger if exists delete_share_files on {}.shares;
create trigger delete_share_files after delete on {}.shares
  for each row when (old.job_id is not null) execute function {}.delete_share_files();
drop trigger if exists delete_replaced_share_files on {}.shares;
create trigger delete_replaced_share_files after update of job_id, download_status on {}.shares
  for each row when (old.job_id is not null) execute function {}.delete_share_files();

-- Show what became of jobs that ended without their own code: cancelled by an operator, or crashed too often.
create or replace function {}.settle_ended_shares(p_now timestamptz) returns void
language plpgsql set search_path = '' as $$
begin
  update {}.shares s set download_status = 'failed', slot_taken_at = null, run_after = null,
    processing_status = 'skipped', transcript_status = 'skipped',
    download_error = 'The download stopped unexpectedly. Try again.'
  where s.download_task_id is not null and s.download_status in ('pending', 'processing', 'retry')
    and coalesce(s.slot_taken_at, s.updated_at) < p_now - interval '5 seconds'
    and not exists (select from holdfast.tasks t where t.id = s.download_task_id
      and t.status || '' in ('waiting', 'scheduled', 'ready', 'running'));
  update {}.shares s set
    processing_error = case when s.processing_status in ('waiting', 'processing')
      then coalesce(s.processing_error, 'The processing stopped unexpectedly. Try again.') else s.processing_error end,
    transcript_error = case when s.transcript_status = 'processing'
      then coalesce(s.transcript_error, 'The transcription stopped unexpectedly. Try again.') else s.transcript_error end,
    processing_status = case when s.processing_status in ('waiting', 'processing') then 'failed'
      else s.processing_status end,
    transcript_status = case s.transcript_status when 'waiting' then 'skipped' when 'processing' then 'failed'
      else s.transcript_status end
  where s.download_status = 'completed' and s.job_id is not null
    and (s.processing_status in ('waiting', 'processing') or s.transcript_status in ('waiting', 'processing'))
    and s.updated_at < p_now - interval '5 seconds'
    and not exists (select from holdfast.tasks t where t.job_id = s.job_id
      and t.status || '' in ('waiting', 'scheduled', 'ready', 'running'));
end $$;

-- Return how many downloads may run at once: the limit, and no more than the workers have room for, so that the order
-- is decided here and not by who is first in a queue.
create or replace function {}.count_download_slots(p_now timestamptz) returns integer
language plpgsql stable set search_path = '' as $$
declare
  v_slots_of_new_worker constant integer := 10; -- until its first report: the default of `holdfast worker`
begin
  return least(
    coalesce((select r.max_running from holdfast.limit_rules r where r.name = 'media downloads'), 100),
    coalesce((select sum(coalesce((w.report ->> 'slots')::integer, v_slots_of_new_worker)) from holdfast.workers w
      where 'media' = any (w.queues) and w.stopped_at is null and not w.lost and w.command is null
        and w.seen_at > p_now - interval '1 minute'), 0));
end $$;

-- Start a share: its job is submitted, or the task that waits for its next attempt continues. Return false when an
-- attempt is still ending.
create or replace function {}.start_share(p_share {}.shares, p_now timestamptz) returns boolean
language plpgsql set search_path = '' as $$
declare
  v_job jsonb;
  v_status text := (select t.status from holdfast.tasks t where t.id = p_share.download_task_id);
  v_args jsonb := jsonb_build_object('share_id', p_share.id);
begin
  if v_status in ('ready', 'running') then
    return false;
  elsif v_status = 'scheduled' then
    perform holdfast.start_scheduled_task(p_share.download_task_id);
    update {}.shares s set slot_taken_at = p_now where s.id = p_share.id;
    return true;
  end if;
  v_job := holdfast.submit(jsonb_build_object('type', 'media_share', 'owner', p_share.user_id::text,
    'params', v_args, 'tasks', jsonb_build_array(
      jsonb_build_object('name', 'download', 'type', 'media_download', 'queue', 'media', 'args', v_args,
        'limit_key', p_share.url_host, 'weight', 6, 'attempts', 1, 'timeout_s', 86400, 'lease_s', 30),
      jsonb_build_object('name', 'process', 'type', 'media_process', 'queue', 'media-processing', 'args', v_args,
        'after', jsonb_build_array(jsonb_build_object('name', 'download', 'on_failure', 'skip')),
        'weight', 2, 'attempts', 2, 'base_s', 10, 'cap_s', 60, 'timeout_s', 14400, 'lease_s', 30),
      jsonb_build_object('name', 'transcribe', 'type', 'media_transcribe', 'queue', 'media-processing',
        'args', v_args, 'after', jsonb_build_array(jsonb_build_object('name', 'process', 'on_failure', 'skip')),
        'weight', 2, 'attempts', 3, 'base_s', 10, 'cap_s', 600, 'timeout_s', 28800, 'lease_s', 30))));
  update {}.shares s set slot_taken_at = p_now, job_id = (v_job ->> 'id')::uuid,
    download_task_id = (v_job #>> '{tasks,download}')::uuid where s.id = p_share.id;
  return true;
end $$;

-- Start as many downloads as there is room for, and return their number. The order: premium retries, premium new, free
-- retries, free new; every fifth start is a free one, if one waits. Hosts at their limit are passed over.
create or replace function {}.start_share_downloads() returns integer
language plpgsql security definer set search_path = '' as $$
declare
  v_free_turn constant integer := 5;
  v_max_starts constant integer := 200; -- of one call, so that its transaction stays short
  v_now timestamptz := holdfast.now();
  v_count bigint;
  v_room integer;
  v_started integer := 0;
  v_host_limit integer := (select r.max_running from holdfast.limit_rules r
    where r.name = 'media downloads of one host');
  v_full_hosts text[];
  v_ending uuid[] := '{}';
  v_share {}.shares;
begin
  select s.started into v_count from {}.share_starts s for update skip locked;
  if not found then
    return 0;
  end if;
  perform {}.settle_ended_shares(v_now);
  v_room := least(v_max_starts,
    {}.count_download_slots(v_now) - (select count(*) from {}.shares s where s.slot_taken_at is not null));
  while v_room > 0 loop
    v_full_hosts := array(select s.url_host from {}.shares s where s.slot_taken_at is not null and s.url_host is not null
      group by s.url_host having count(*) >= v_host_limit);
    v_share := {}.choose_next_share((v_count + 1) % v_free_turn = 0, v_full_hosts, not {}.has_free_ytdlp_slot(null),
      v_ending, v_now);
    exit when v_share.id is null;
    if {}.start_share(v_share, v_now) then
      v_count := v_count + 1;
      v_started := v_started + 1;
      v_room := v_room - 1;
    else
      v_ending := v_ending || v_share.id;
    end if;
  end loop;
  if v_started > 0 then
    update {}.share_starts set started = v_count;
  end if;
  return v_started;
end $$;

-- Return whether fewer downloads with yt-dlp are started than may be. One share is not counted.
create or replace function {}.has_free_ytdlp_slot(p_without uuid) returns boolean
language sql stable set search_path = '' as $$
  select coalesce((select r.max_running from holdfast.limit_rules r where r.name = 'media downloads with yt-dlp'), 12)
    > (select count(*) from {}.shares s where s.slot_taken_at is not null and s.uses_ytdlp
      and s.id is distinct from p_without);
$$;

-- Mark a running share as one that needs yt-dlp. Return whether it may go on; otherwise it waits for its turn.
create or replace function {}.take_ytdlp_slot(p_share uuid, p_job uuid) returns boolean
language plpgsql security definer set search_path = '' as $$
declare
  v_free boolean;
begin
  perform from {}.share_starts s for update; -- one at a time, and not while downloads are started
  v_free := {}.has_free_ytdlp_slot(p_share);
  update {}.shares s set uses_ytdlp = true,
    download_status = case when v_free then s.download_status else 'retry' end,
    slot_taken_at = case when v_free then s.slot_taken_at end
  where s.id = p_share and s.job_id = p_job;
  return v_free;
end $$;

-- Return the share whose turn it is, locked, or a row of nulls. Each class is read in the order of an index.
drop function if exists {}.choose_next_share(boolean, text[], uuid[], timestamptz);
create or replace function {}.choose_next_share(p_free_first boolean, p_full_hosts text[], p_ytdlp_full boolean,
  p_excluded uuid[], p_now timestamptz) returns {}.shares
language plpgsql set search_path = '' set plan_cache_mode = force_custom_plan as $$
declare
  v_class record;
  v_share {}.shares;
begin
  for v_class in
    select c.premium, c.status from (values (true, 'retry', 1), (true, 'pending', 2), (false, 'retry', 3),
      (false, 'pending', 4)) as c (premium, status, place)
    order by c.premium and p_free_first, c.place
  loop
    select s.* into v_share from {}.shares s
    where s.premium = v_class.premium and s.download_status = v_class.status and s.slot_taken_at is null
      and s.download_status in ('pending', 'retry')
      and (s.run_after is null or s.run_after <= p_now) and s.id <> all (p_excluded)
      and (s.url_host is null or s.url_host <> all (p_full_hosts)) and not (s.uses_ytdlp and p_ytdlp_full)
    order by s.created_at, s.id limit 1 for update skip locked;
    exit when found;
  end loop;
  return v_share;
end $$;

revoke all on function {}.prepare_share(), {}.delete_share_files(), {}.settle_ended_shares(timestamptz),
  {}.count_download_slots(timestamptz), {}.start_share({}.shares, timestamptz), {}.start_share_downloads(),
  {}.choose_next_share(boolean, text[], boolean, uuid[], timestamptz), {}.has_free_ytdlp_slot(uuid),
  {}.take_ytdlp_slot(uuid, uuid) from public;

-- Services and workers read and change all rows. Users read their own rows. They add and delete shares
-- through the API, which checks the URL and the limits.
call holdfast.protect_system_table('{}.shares');
call holdfast.protect_system_table('{}.share_progress');
call holdfast.protect_system_table('{}.share_usage');
call holdfast.protect_system_table('{}.share_starts', 'none');
do $$
declare
  v_role text;
begin
  foreach v_role in array array['service_role', 'holdfast_worker'] loop
    if exists (select from pg_catalog.pg_roles where rolname = v_role) then
      execute format('grant execute on function {}.start_share_downloads(), {}.take_ytdlp_slot(uuid, uuid) to %I', v_role);
    end if;
  end loop;
end $$;

-- The three queries with which the downloads are watched.
create or replace view {}.download_queue_depth as
  select s.download_status, count(*) as count from {}.shares s where s.download_status <> 'completed'
  group by s.download_status;
create or replace view {}.download_average_time as
  select avg(extract(epoch from s.download_completed_at - s.download_started_at)) as avg_seconds from {}.shares s
  where s.download_status = 'completed' and s.download_completed_at > now() - interval '1 hour';
create or replace view {}.download_failure_rate as
  select count(*) filter (where s.download_status = 'failed')::double precision / nullif(count(*), 0) * 100
    as failure_rate
  from {}.shares s where s.created_at > now() - interval '1 hour';

do $$
declare
  v_view text;
  v_role text;
begin
  foreach v_view in array array['download_queue_depth', 'download_average_time', 'download_failure_rate'] loop
    if pg_catalog.current_setting('server_version_num')::integer >= 150000 then
      execute format('alter view {}.%I set (security_invoker = true)', v_view);
    end if;
    execute format('revoke all on {}.%I from public', v_view);
    foreach v_role in array array['anon', 'authenticated', 'service_role', 'holdfast_worker'] loop
      continue when not exists (select from pg_catalog.pg_roles where rolname = v_role);
      execute format('revoke all on {}.%I from %I', v_view, v_role);
      if v_role in ('service_role', 'holdfast_worker') then
        execute format('grant select on {}.%I to %I', v_view, v_role);
      end if;
    end loop;
  end loop;
end $$;

-- What the erasure of a user deletes.
call holdfast.register_owner_table('{}.share_progress');
call holdfast.register_owner_table('{}.shares');
call holdfast.register_owner_table('{}.share_usage');
