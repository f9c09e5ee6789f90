-- The two message queues, and what sends to them. Queues that exist keep their messages; a policy that an operator
-- changed stays as it is.
do $$
declare
  v_queue record;
begin
  for v_queue in select * from (values ('scrape_jobs', interval '120 seconds'), ('enrich_jobs', interval '300 seconds'))
    as q (name, vt)
  loop
    if not holdfast.message_queue_exists(v_queue.name) then
      perform pgmq.create(v_queue.name);
    end if;
    if not exists (select from holdfast.message_policies where queue_name = v_queue.name) then
      -- The workers count the reads themselves, because the row must show the failure in the same transaction.
      perform holdfast.put_message_policy(v_queue.name, p_backoff => '5 seconds', p_backoff_cap => '5 minutes',
        p_archive_retention => '30 days', p_vt => v_queue.vt);
    end if;
  end loop;
end $$;

-- Convert the text of an id to the type of the column. A text of another form is null.
do $$
begin
  execute format('create or replace function {}.parse_clip_id(p_id text) returns %1$s
    language sql immutable set search_path = '''' as %2$L',
    (select format_type(a.atttypid, null) from pg_catalog.pg_attribute a
      where a.attrelid = '{}.clipnest_videos'::regclass and a.attname = 'id'),
    (select format('select case when p_id ~* %L then p_id::%s end',
      case format_type(a.atttypid, null)
        when 'uuid' then '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$'
        when 'bigint' then '^[0-9]{1,18}$' else '^[0-9]{1,9}$' end,
      format_type(a.atttypid, null))
    from pg_catalog.pg_attribute a where a.attrelid = '{}.clipnest_videos'::regclass and a.attname = 'id'));
end $$;

-- Build the message of a clip.
create or replace function {}.build_clip_message(p_id text, p_user_id uuid, p_video_url text) returns jsonb
language sql immutable set search_path = '' as $$
  select jsonb_build_object('video_id', p_id, 'user_id', p_user_id, 'video_url', p_video_url)
$$;

-- Send the messages of inserted rows in the transaction of the INSERT. Users take turns: of a user with many clips,
-- 16 messages are visible at first. The others appear when no message is ready, or one a minute.
create or replace function {}.send_inserted_clips() returns trigger
language plpgsql security definer set search_path = '' as $$
declare
  v_visible_per_user constant integer := 16;
  v_user uuid;
  v_messages bigint[];
  v_ahead bigint;
begin
  if holdfast.get_end_user_id() is not null then
    perform {}.check_clip_limits(u.user_id) from (select distinct i.user_id from inserted i) as u;
  end if;
  for v_user in select distinct i.user_id from inserted i where i.processing_status = 'pending' loop
    with numbered as (
      select i.id, {}.build_clip_message(i.id::text, i.user_id, i.video_url) as body,
        row_number() over (order by i.created_at, i.id) as n
      from inserted i where i.processing_status = 'pending' and i.user_id = v_user
    ), sent as (
      select s.message_id, s.n from pgmq.send_batch('scrape_jobs', (select array_agg(m.body order by m.n) from numbered m))
        with ordinality as s (message_id, n)
    ), changed as (
      update {}.clipnest_videos c set message_queue = 'scrape_jobs', message_id = s.message_id
      from numbered m join sent s on s.n = m.n where c.id = m.id returning c.message_id
    )
    select array_agg(c.message_id order by c.message_id) into v_messages from changed c;
    v_ahead := (select count(*) from {}.clipnest_videos c where c.user_id = v_user
      and c.processing_status in ('pending', 'scraping')) - cardinality(v_messages);
    if v_ahead + cardinality(v_messages) > v_visible_per_user then
      update pgmq.q_scrape_jobs q set vt = clock_timestamp() + make_interval(mins => (v_ahead + m.n - v_visible_per_user)::integer)
      from unnest(v_messages) with ordinality as m (id, n)
      where q.msg_id = m.id and v_ahead + m.n > v_visible_per_user;
    end if;
  end loop;
  return null;
end $$;
drop trigger if exists send_inserted_clips on {}.clipnest_videos;
create trigger send_inserted_clips after insert on {}.clipnest_videos
  referencing new table as inserted for each statement execute function {}.send_inserted_clips();

-- If no message is ready, make the next hidden ones visible, one of each user at first. One caller at a time.
create or replace function {}.release_waiting_clips() returns void
language plpgsql security definer set search_path = '' as $$
declare
  v_released_at_once constant integer := 16;
begin
  if exists (select from pgmq.q_scrape_jobs q where q.vt <= clock_timestamp())
    or not pg_try_advisory_xact_lock(7263483, 2) then
    return;
  end if;
  update pgmq.q_scrape_jobs q set vt = clock_timestamp() from (
    select h.msg_id, row_number() over (partition by c.user_id order by h.msg_id) as turn
    from {}.clipnest_videos c join pgmq.q_scrape_jobs h on h.msg_id = c.message_id
    where c.processing_status = 'pending' and c.message_queue = 'scrape_jobs' and h.read_ct = 0
      and h.vt > clock_timestamp()
    order by turn, h.msg_id limit v_released_at_once) as next
  where q.msg_id = next.msg_id and q.read_ct = 0;
  if found then
    perform holdfast.wake_message_readers('scrape_jobs');
  end if;
end $$;

-- Send the message of one clip that has none: for the webhook, for a retry and for rows from before. Return whether a
-- message was sent. With p_restart, a clip that failed or is done starts again.
create or replace function {}.enqueue_clip(p_id text, p_restart boolean default false) returns boolean
language plpgsql security definer set search_path = '' as $$
declare
  v_clip {}.clipnest_videos;
  v_queue text;
begin
  select c.* into v_clip from {}.clipnest_videos c where c.id = {}.parse_clip_id(p_id) for update;
  if not found or (v_clip.processing_status in ('done', 'failed') and not p_restart)
    or (v_clip.processing_status not in ('done', 'failed') and {}.has_clip_message(v_clip)) then
    return false;
  end if;
  -- What was scraped is not scraped again.
  v_queue := case when exists (select from {}.clip_steps s where s.clip_id = v_clip.id and s.step = 'scraped')
    then 'enrich_jobs' else 'scrape_jobs' end;
  update {}.clipnest_videos c set message_queue = v_queue, uncounted_reads = 0, processing_error = null,
    processing_status = case v_queue when 'scrape_jobs' then 'pending' else 'enriching' end,
    message_id = (select s from pgmq.send(v_queue, {}.build_clip_message(p_id, c.user_id, c.video_url)) as s)
  where c.id = v_clip.id;
  return true;
end $$;

-- Return whether the message of a clip is still in its queue.
create or replace function {}.has_clip_message(p_clip {}.clipnest_videos) returns boolean
language sql stable set search_path = '' as $$
  select exists (select from pgmq.q_scrape_jobs q where p_clip.message_queue = 'scrape_jobs' and q.msg_id = p_clip.message_id)
    or exists (select from pgmq.q_enrich_jobs q where p_clip.message_queue = 'enrich_jobs' and q.msg_id = p_clip.message_id)
$$;

-- Send messages for unfinished clips that have none: rows from before, and rows whose message somebody deleted. Return
-- how many. Rows that changed since p_before are left alone, as are those that an unknown message names.
create or replace function {}.enqueue_abandoned_clips(p_before timestamptz, p_limit integer default 500)
returns integer
language plpgsql security definer set search_path = '' as $$
declare
  v_count integer := 0;
  v_clip text;
begin
  for v_clip in
    select c.id::text from {}.clipnest_videos c
    where c.processing_status in ('pending', 'scraping', 'enriching') and c.updated_at < p_before
      and not {}.has_clip_message(c)
      and not exists (select from pgmq.q_scrape_jobs q where q.message ->> 'video_id' = c.id::text)
      and not exists (select from pgmq.q_enrich_jobs q where q.message ->> 'video_id' = c.id::text)
    order by c.created_at limit p_limit
  loop
    v_count := v_count + {}.enqueue_clip(v_clip)::integer;
  end loop;
  return v_count;
end $$;

-- The calls of the source, for `supabase.rpc()`. Functions of these names that exist stay as they are.
do $$
declare
  v_wrapper record;
begin
  for v_wrapper in select * from (values
    ('pgmq_send', 'queue_name text, msg jsonb, delay integer default 0', 'text,jsonb,integer', 'setof bigint',
      'select * from pgmq.send(queue_name, msg, delay)'),
    ('pgmq_read', 'queue_name text, vt integer default 30, qty integer default 1', 'text,integer,integer',
      'setof pgmq.message_record', 'select * from pgmq.read(queue_name, vt, qty)'),
    ('pgmq_archive', 'queue_name text, msg_id bigint', 'text,bigint', 'boolean', 'select pgmq.archive(queue_name, msg_id)'),
    ('pgmq_delete', 'queue_name text, msg_id bigint', 'text,bigint', 'boolean', 'select pgmq.delete(queue_name, msg_id)'),
    ('pgmq_set_vt', 'queue_name text, msg_id bigint, vt integer', 'text,bigint,integer', 'setof pgmq.message_record',
      'select * from pgmq.set_vt(queue_name, msg_id, vt)')) as w (name, arguments, types, answer, body)
  loop
    continue when to_regprocedure(format('{}.%s(%s)', v_wrapper.name, v_wrapper.types)) is not null;
    execute format('create function {}.%s(%s) returns %s language sql set search_path = '''' as %L',
      v_wrapper.name, v_wrapper.arguments, v_wrapper.answer, v_wrapper.body);
    execute format('revoke all on function {}.%s(%s) from public', v_wrapper.name, v_wrapper.types);
    if exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
      execute format('grant execute on function {}.%s(%s) to service_role', v_wrapper.name, v_wrapper.types);
    end if;
  end loop;
end $$;
