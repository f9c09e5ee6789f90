-- The table of the clip system. `{}` is the schema. Running these scripts again changes nothing. A table
-- `clipnest_videos` that exists keeps its rows and columns, and gets the columns that are missing.

create table if not exists {}.clipnest_videos (
  id uuid primary key default gen_random_uuid(),
  user_id uuid not null,
  video_url text not null,
  title text,
  author text,
  thumbnail text,
  transcript text,
  summary text,
  tags text[],
  embedding real[],
  processing_status text not null default 'pending',
  processing_error text,
  created_at timestamptz not null default now()
);

do $$
declare
  v_id_type text := (select format_type(a.atttypid, null) from pg_catalog.pg_attribute a
    where a.attrelid = '{}.clipnest_videos'::regclass and a.attname = 'id' and not a.attisdropped);
  v_user_type text := (select format_type(a.atttypid, null) from pg_catalog.pg_attribute a
    where a.attrelid = '{}.clipnest_videos'::regclass and a.attname = 'user_id' and not a.attisdropped);
begin
  if v_id_type is null or v_id_type not in ('uuid', 'bigint', 'integer') or v_user_type is distinct from 'uuid' then
    raise exception using errcode = 'HF004',
      message = 'The table clipnest_videos needs a column id (uuid, bigint or integer) and a column user_id (uuid).',
      hint = 'Install the clip system into another schema with the setting systems_schema.';
  end if;
  alter table {}.clipnest_videos add column if not exists title text, add column if not exists author text,
    add column if not exists thumbnail text, add column if not exists transcript text,
    add column if not exists summary text, add column if not exists tags text[],
    add column if not exists embedding real[],
    add column if not exists created_at timestamptz not null default now();
  if not exists (select from pg_catalog.pg_attribute a where a.attrelid = '{}.clipnest_videos'::regclass
      and a.attname = 'processing_status' and not a.attisdropped) then
    alter table {}.clipnest_videos add column processing_status text not null default 'pending';
    update {}.clipnest_videos set processing_status = 'done' where transcript is not null or summary is not null;
  end if;
  update {}.clipnest_videos set processing_status = 'pending' where processing_status is null;
  alter table {}.clipnest_videos add column if not exists processing_error text,
    alter column processing_status set default 'pending', alter column processing_status set not null;
end $$;

-- The columns below are not part of the source.
--   transcript_segments      the transcript with times: [[start, end, text], ...] in seconds
--   transcript_by, enriched_by, embedding_model   which provider made it; `notice` says what the user should know
--   message_queue, message_id   the message that stands for the work that is left
--   uncounted_reads          reads of that message that do not count: its worker was stopped, or a provider had a limit
--   percent, phase           how far the work is, and what is being done
--   thumbnail_file           the stored picture; `thumbnail` is its path, which begins with the owner's id
alter table {}.clipnest_videos
  add column if not exists description text,
  add column if not exists duration_s double precision,
  add column if not exists language text,
  add column if not exists transcript_segments jsonb,
  add column if not exists transcript_by text,
  add column if not exists enriched_by text,
  add column if not exists notice text,
  add column if not exists embedding_model text,
  add column if not exists embedding_dimension integer,
  add column if not exists tokens_in bigint not null default 0,
  add column if not exists tokens_out bigint not null default 0,
  add column if not exists cost numeric not null default 0,
  add column if not exists thumbnail_file uuid,
  add column if not exists url_key bytea,
  add column if not exists message_queue text,
  add column if not exists message_id bigint,
  add column if not exists uncounted_reads integer not null default 0,
  add column if not exists percent integer not null default 0,
  add column if not exists phase text,
  add column if not exists search tsvector,
  add column if not exists version integer not null default 1,
  add column if not exists updated_at timestamptz not null default clock_timestamp();

-- Return the key of a URL: two spellings with the same key are one clip. The API normalises more before it inserts.
create or replace function {}.build_clip_url_key(p_url text) returns bytea
language sql immutable set search_path = '' as $$
  select sha256(convert_to(
    lower(substring(btrim(p_url) from '^[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*'))
      || coalesce(nullif(substring(btrim(p_url) from '^[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*([^#]*)'), ''), '/'),
    'UTF8'))
$$;

-- Prepare a row that somebody inserts or changes: the key of its URL, the words that are searched, and its version.
create or replace function {}.prepare_clip() returns trigger
language plpgsql set search_path = '' as $$
declare
  v_row jsonb;
begin
  if tg_op = 'INSERT' then
    new.message_queue := null; new.message_id := null; new.uncounted_reads := 0; new.version := 1;
    new.url_key := coalesce(new.url_key, {}.build_clip_url_key(new.video_url), sha256(convert_to(new.video_url, 'UTF8')));
  else
    new.version := old.version + 1;
  end if;
  new.updated_at := clock_timestamp();
  if tg_op = 'INSERT' or new.search is null or (new.title, new.author, new.description, new.summary) is distinct from
      (old.title, old.author, old.description, old.summary) or new.tags is distinct from old.tags then
    v_row := jsonb_build_object('tags', new.tags);
    new.search := setweight(to_tsvector('simple', left(coalesce(new.title, ''), 2000)), 'A')
      || setweight(to_tsvector('simple', left(coalesce(v_row ->> 'tags', ''), 5000)), 'A')
      || setweight(to_tsvector('simple', left(coalesce(new.author, ''), 1000)), 'B')
      || setweight(to_tsvector('simple', left(coalesce(new.summary, ''), 20000)), 'B')
      || setweight(to_tsvector('simple', left(coalesce(new.description, ''), 20000)), 'C');
  end if;
  return new;
end $$;
drop trigger if exists prepare_clip on {}.clipnest_videos;
create trigger prepare_clip before insert or update on {}.clipnest_videos
  for each row execute function {}.prepare_clip();

-- Rows from before the key. Of two rows with the same URL, the older one has the key.
update {}.clipnest_videos c set url_key = k.key from (
  select id, row_number() over (partition by user_id, key order by created_at, id) as place, key from (
    select id, user_id, created_at,
      coalesce({}.build_clip_url_key(video_url), sha256(convert_to(video_url, 'UTF8'))) as key
    from {}.clipnest_videos) as keyed) as k
where c.id = k.id and c.url_key is null and k.place = 1 and not exists (
  select from {}.clipnest_videos o where o.user_id = c.user_id and o.url_key = k.key);

-- Finished rows from before become searchable: the next run of the job `reembed_clips` embeds their transcripts.
update {}.clipnest_videos set transcript_segments = '[]'
where processing_status = 'done' and transcript is not null and transcript_segments is null;
update {}.clipnest_videos set search = null where search is null;

create unique index if not exists clipnest_videos_user_url on {}.clipnest_videos (user_id, url_key);
create index if not exists clipnest_videos_user on {}.clipnest_videos (user_id, created_at desc, id);
create index if not exists clipnest_videos_user_updated on {}.clipnest_videos (user_id, updated_at);
create index if not exists clipnest_videos_unfinished on {}.clipnest_videos (user_id, processing_status)
  where processing_status in ('pending', 'scraping', 'enriching');
create index if not exists clipnest_videos_ended on {}.clipnest_videos (updated_at)
  where processing_status in ('done', 'failed');
create index if not exists clipnest_videos_search on {}.clipnest_videos using gin (search);
create index if not exists clipnest_videos_model on {}.clipnest_videos (embedding_model)
  where processing_status = 'done' and transcript_segments is not null;

-- Delete the thumbnail together with its row, or when it is replaced, and archive the message of a deleted row.
create or replace function {}.delete_clip_parts() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
  if old.thumbnail_file is not null and holdfast.get_artifact(old.thumbnail_file) ->> 'owner' = old.user_id::text then
    perform holdfast.delete_artifact(old.thumbnail_file);
  end if;
  if tg_op = 'DELETE' and old.message_id is not null and holdfast.message_queue_exists(old.message_queue) then
    perform pgmq.archive(old.message_queue, old.message_id);
  end if;
  return null;
end $$;
drop trigger if exists delete_clip_parts on {}.clipnest_videos;
create trigger delete_clip_parts after delete on {}.clipnest_videos
  for each row execute function {}.delete_clip_parts();
drop trigger if exists delete_replaced_thumbnail on {}.clipnest_videos;
create trigger delete_replaced_thumbnail after update of thumbnail_file on {}.clipnest_videos
  for each row when (old.thumbnail_file is distinct from new.thumbnail_file)
  execute function {}.delete_clip_parts();

-- What a provider answered, kept until the clip is done: a worker that takes over does not pay for it again.
do $$
declare
  v_id_type text := (select format_type(a.atttypid, null) from pg_catalog.pg_attribute a
    where a.attrelid = '{}.clipnest_videos'::regclass and a.attname = 'id');
begin
  execute format('create table if not exists {}.clip_steps (
    clip_id %s not null references {}.clipnest_videos (id) on delete cascade,
    step text not null,
    result jsonb not null,
    created_at timestamptz not null default clock_timestamp(),
    primary key (clip_id, step))', v_id_type);
  -- The passages of a transcript, about half a minute each. signature has the signs of the embedding, 256 bits.
  execute format('create table if not exists {}.clip_passages (
    clip_id %s not null references {}.clipnest_videos (id) on delete cascade,
    number integer not null,
    user_id uuid not null,
    start_s double precision,
    end_s double precision,
    body text not null,
    embedding real[],
    embedding_model text,
    embedding_dimension integer,
    signature bit(256),
    search tsvector generated always as (to_tsvector(''simple'', left(body, 20000))) stored,
    primary key (clip_id, number))', v_id_type);
end $$;
-- Long values are stored elsewhere, so that a scan of the signatures reads few pages.
alter table {}.clip_passages set (toast_tuple_target = 128);
alter table {}.clip_passages alter column embedding set storage external, alter column body set storage external,
  alter column search set storage external;
create index if not exists clip_passages_signature on {}.clip_passages (user_id, embedding_model)
  include (signature, clip_id, number);
create index if not exists clip_passages_search on {}.clip_passages using gin (search);

-- One row: the limits of each user. Change them with UPDATE; installing again keeps them.
create table if not exists {}.clip_limits (
  id boolean primary key default true check (id),
  max_clips integer not null default 10000 check (max_clips > 0),
  max_unfinished integer not null default 2000 check (max_unfinished > 0)
);
insert into {}.clip_limits default values on conflict do nothing;

-- Raise an error if a user has more clips, or more unfinished clips, than allowed. Called after the insert.
create or replace function {}.check_clip_limits(p_user_id uuid) returns void
language plpgsql security definer set search_path = '' as $$
declare
  v_limits {}.clip_limits := (select l from {}.clip_limits l);
begin
  -- Additions of one user wait for each other, so that the limits are exact.
  perform pg_advisory_xact_lock(7263484, hashtext(p_user_id::text));
  if (select count(*) from (select from {}.clipnest_videos c where c.user_id = p_user_id
      and c.processing_status in ('pending', 'scraping', 'enriching') limit v_limits.max_unfinished + 1) as u)
      > v_limits.max_unfinished then
    raise exception using errcode = 'HF006', column = 'video_url',
      message = format('More than %s of your clips are waiting.', v_limits.max_unfinished),
      hint = 'Wait until some of them are done.';
  end if;
  if (select count(*) from (select from {}.clipnest_videos c where c.user_id = p_user_id
      limit v_limits.max_clips + 1) as u) > v_limits.max_clips then
    raise exception using errcode = 'HF007', column = 'video_url',
      message = format('You may save %s clips.', v_limits.max_clips), hint = 'Delete clips that you do not need.';
  end if;
end $$;
