-- Tables of the bookmark system: bookmarks and imports, and the views of its message queue. `{}` is the schema.
-- Running this script again changes nothing.

-- One list of web pages that a user imported together.
create table if not exists {}.bookmark_imports (
  id uuid primary key default gen_random_uuid(),
  user_id uuid not null,
  total integer not null,
  already_saved integer not null,
  refused integer not null,
  created_at timestamptz not null default holdfast.now()
);
create index if not exists bookmark_imports_user on {}.bookmark_imports (user_id, created_at desc);

-- One row per web page that a user saved. url_key is the SHA-256 of the normalised URL, because an index cannot hold a
-- URL of several thousand bytes. screenshot, og_image and favicon are paths that begin with the owner's id; the files
-- themselves are those in the columns *_file. message_id is the message of the queue that fills in the row.
create table if not exists {}.bookmarks (
  id bigint generated always as identity primary key,
  user_id uuid not null,
  url text not null check (octet_length(url) between 1 and 8192),
  url_key bytea not null,
  category_id bigint,
  title text,
  description text,
  screenshot text,
  og_image text,
  favicon text,
  blurhash text,
  width integer,
  height integer,
  ocr text,
  caption text,
  is_image boolean not null default false,
  page_text text,
  og_image_url text,
  favicon_urls text[] not null default '{}',
  screenshot_file uuid,
  og_image_file uuid,
  favicon_file uuid,
  status text not null default 'pending'
    check (status in ('pending', 'processing', 'retrying', 'complete', 'failed')),
  screenshot_status text not null default 'pending'
    check (screenshot_status in ('pending', 'running', 'succeeded', 'failed', 'skipped')),
  screenshot_error text,
  remaining_status text not null default 'pending'
    check (remaining_status in ('pending', 'running', 'succeeded', 'failed')),
  remaining_error text,
  attempts integer not null default 0,
  message_id bigint,
  import_id uuid references {}.bookmark_imports on delete set null,
  version integer not null default 1,
  created_at timestamptz not null default holdfast.now(),
  updated_at timestamptz not null default clock_timestamp(),
  search tsvector generated always as (
    setweight(to_tsvector('simple', coalesce(title, '')), 'A')
    || setweight(to_tsvector('simple', coalesce(description, '') || ' ' || coalesce(caption, '')), 'B')
    || setweight(to_tsvector('simple', regexp_replace(left(url, 2000), '[^[:alnum:]]+', ' ', 'g')), 'B')
    || setweight(to_tsvector('simple', left(coalesce(ocr, ''), 20000)), 'C')
    || setweight(to_tsvector('simple', left(coalesce(page_text, ''), 100000)), 'D')) stored,
  unique (user_id, url_key)
);
create index if not exists bookmarks_user on {}.bookmarks (user_id, id desc);
create index if not exists bookmarks_user_updated on {}.bookmarks (user_id, updated_at);
create index if not exists bookmarks_unfinished on {}.bookmarks (user_id) where status in ('pending', 'processing', 'retrying');
create index if not exists bookmarks_import on {}.bookmarks (import_id, status) where import_id is not null;
create index if not exists bookmarks_search on {}.bookmarks using gin (search);

-- Count the changes of a row, so that open pages learn about each of them once.
create or replace function {}.bookmarks_next_version() returns trigger
language plpgsql set search_path = '' as $$
begin
  new.version := old.version + 1;
  new.updated_at := clock_timestamp();
  return new;
end $$;
drop trigger if exists bookmarks_next_version on {}.bookmarks;
create trigger bookmarks_next_version before update on {}.bookmarks
  for each row execute function {}.bookmarks_next_version();

-- Delete the files together with their row, and a replaced file when its row has a new one.
create or replace function {}.delete_bookmark_files() returns trigger
language plpgsql security definer set search_path = '' as $$
declare
  v_file uuid;
begin
  foreach v_file in array array[old.screenshot_file, old.og_image_file, old.favicon_file] loop
    continue when v_file is null;
    continue when tg_op = 'UPDATE' and v_file in (new.screenshot_file, new.og_image_file, new.favicon_file);
    if holdfast.get_artifact(v_file) ->> 'owner' = old.user_id::text then
      perform holdfast.delete_artifact(v_file);
    end if;
  end loop;
  return null;
end $$;
drop trigger if exists delete_bookmark_files on {}.bookmarks;
create trigger delete_bookmark_files after delete on {}.bookmarks
  for each row execute function {}.delete_bookmark_files();
drop trigger if exists delete_replaced_bookmark_files on {}.bookmarks;
create trigger delete_replaced_bookmark_files after update of screenshot_file, og_image_file, favicon_file
  on {}.bookmarks for each row execute function {}.delete_bookmark_files();
revoke all on function {}.bookmarks_next_version(), {}.delete_bookmark_files() from public;

-- Services and workers read and change all rows. Users read their own rows. They add, retry and delete bookmarks through
-- the API, which checks limits and sends messages.
call holdfast.protect_system_table('{}.bookmarks');
call holdfast.protect_system_table('{}.bookmark_imports');

-- The queue, its dead letters and its policy. A policy that an operator changed stays as it is.
do $$
begin
  if not holdfast.message_queue_exists('add-bookmark-url-queue') then
    perform pgmq.create('add-bookmark-url-queue');
  end if;
  if not exists (select from holdfast.message_policies where queue_name = 'add-bookmark-url-queue') then
    perform holdfast.put_message_policy('add-bookmark-url-queue', p_max_reads => 5,
      p_dead_letter_queue => 'add-bookmark-url-queue-dead', p_backoff => '30 seconds', p_backoff_cap => '1 hour',
      p_vt => '2 minutes');
  end if;
end $$;

-- The views of the source's monitoring queries, for services. A schema pgmq_public that Supabase owns stays without them
-- unless the role that installs may create views there.
do $$
declare
  v_view text;
begin
  if not has_schema_privilege('pgmq_public', 'create') then
    raise notice 'No right to create views in the schema pgmq_public; the monitoring views were left out.';
    return;
  end if;
  create or replace view pgmq_public.add_bookmark_url_queue as
    select msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers from pgmq."q_add-bookmark-url-queue";
  create or replace view pgmq_public.add_bookmark_url_queue_archive as
    select msg_id, read_ct, enqueued_at, last_read_at, archived_at, vt, message, headers
    from pgmq."a_add-bookmark-url-queue";
  foreach v_view in array array['add_bookmark_url_queue', 'add_bookmark_url_queue_archive'] loop
    if pg_catalog.current_setting('server_version_num')::integer >= 150000 then
      execute format('alter view pgmq_public.%I set (security_invoker = true)', v_view);
    end if;
    execute format('revoke all on pgmq_public.%I from public', v_view);
    if exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
      execute format('grant select on pgmq_public.%I to service_role', v_view);
    end if;
  end loop;
end $$;

-- What the erasure of a user deletes.
call holdfast.register_owner_table('{}.bookmarks');
call holdfast.register_owner_table('{}.bookmark_imports');
call holdfast.register_owner_queue('add-bookmark-url-queue', 'userId');
