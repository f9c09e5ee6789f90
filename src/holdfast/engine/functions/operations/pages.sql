-- Pages: what the dashboard shows of one job, of the database, of what failed lately; views that people save; and links
-- that let somebody in once. Every answer is bounded.

-- A job with its tasks as a timeline needs them: at most p_most, the ones that matter most first; no payloads.
create or replace function holdfast.job_page(p_id uuid, p_most integer default 500) returns jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
declare
  v_row jsonb := holdfast.search_rows(array[p_id]) -> 0;
  v_ids uuid[];
begin
  if v_row is null then
    return null;
  end if;
  if (v_row ->> 'single')::boolean then
    v_ids := array[p_id];
  else
    v_ids := array(select f.id from (
      select t.id, t.status from holdfast.tasks t where t.job_id = p_id
      union all select h.id, h.status from holdfast.history h where h.job_id = p_id) as f
      order by f.status not in ('running', 'failed'), f.status = 'succeeded', f.id limit p_most);
  end if;
  return v_row || jsonb_build_object(
    'tasks', (select jsonb_agg(to_jsonb(t) - '{args,output,labels,event_seq,job_id,single,batch_id,owner}'::text[]
        || jsonb_build_object('worker', (select w.name from holdfast.workers w where w.id = t.worker_id),
          'error', t.error - 'traceback') order by t.id)
      from holdfast.all_tasks t where t.id = any (v_ids)),
    'edges', (select coalesce(jsonb_agg(jsonb_build_array(e.parent_id, e.child_id)), '[]') from (
      select e.parent_id, e.child_id from holdfast.edges e where e.job_id = p_id and e.parent_id = any (v_ids) and e.child_id = any (v_ids)
      limit 5000) as e),
    'attempts', (select coalesce(jsonb_agg(to_jsonb(a) order by a.ended_at), '[]') from (
      select a.task_id, a.attempt, a.outcome, a.started_at, a.ended_at, a.error_type from holdfast.attempts a
      where a.task_id = any (v_ids) order by a.ended_at desc limit 2000) as a));
end $$;

-- The payload of one task of a job.
create or replace function holdfast.task_payload(p_id uuid) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
begin
  return (select jsonb_build_object('id', t.id, 'name', t.name, 'type', t.type, 'args', t.args, 'output', t.output, 'error', t.error)
    from holdfast.all_tasks t where t.id = p_id limit 1);
end $$;

-- What workers said about a type, or null.
create or replace function holdfast.task_type(p_name text) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
begin
  return (select to_jsonb(t) from holdfast.task_types t where t.name = p_name);
end $$;

-- Attempts of the tasks of a job with what went wrong, newest first.
create or replace function holdfast.job_attempts(p_id uuid, p_limit integer default 50) returns setof jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
begin
  return query
  select (to_jsonb(a) - '{keep_until,owner,job_id,worker_id}'::text[]) || jsonb_build_object(
    'worker', w.name, 'version', w.about ->> 'version', 'host', w.about ->> 'host',
    'name', (select t.name from holdfast.all_tasks t where t.id = a.task_id limit 1))
  from (
    select a.* from holdfast.attempts a where a.task_id in (
      select p_id union all select t.id from holdfast.tasks t where t.job_id = p_id
      union all select h.id from holdfast.history h where h.job_id = p_id)
    order by a.ended_at desc limit least(greatest(p_limit, 1), 500)) as a
  left join holdfast.workers w on w.id = a.worker_id
  order by a.ended_at desc;
end $$;

-- How many tasks failed for good since then, and how many wait for another attempt; counting stops at p_most.
create or replace function holdfast.troubles(p_since timestamptz, p_most integer default 10000) returns jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
begin
  return jsonb_build_object(
    'failed', (select sum(n.n)::bigint from holdfast.kinds k cross join lateral (
      select count(*) as n from (select from holdfast.history h where h.status = 'failed' and h.kind_id = k.id and h.finished_at >= p_since
        limit p_most) as f) as n),
    'retrying', (select count(*) from (select from holdfast.tasks t where t.status = 'scheduled' and t.failures + t.crashes > 0 limit p_most) as f),
    'scheduled', (select count(*) from (select from holdfast.tasks t where t.status = 'scheduled' limit p_most) as f),
    'waiting', (select count(*) from (select from holdfast.jobs j where j.finished_at is null limit p_most) as f));
end $$;

-- Files as a page lists them, newest first, with sums that the database keeps.
create or replace function holdfast.files_page(p_owner text, p_before uuid, p_limit integer default 50) returns jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
begin
  return jsonb_build_object(
    'files', (select coalesce(jsonb_agg(to_jsonb(f) - '{key,nonce}'::text[] order by f.id desc), '[]') from (
      select * from holdfast.artifacts f where f.status = 'visible' and (p_owner is null or f.owner = p_owner)
        and f.id < coalesce(p_before, 'ffffffff-ffff-ffff-ffff-ffffffffffff') order by f.id desc limit least(greatest(p_limit, 1), 500)) as f),
    'usage', (select coalesce(jsonb_agg(to_jsonb(u) || jsonb_build_object('limit', q.bytes) order by u.bytes desc), '[]') from (
      select * from holdfast.usage u where p_owner is null or u.owner = p_owner order by u.bytes desc limit 20) as u
      left join lateral holdfast.quota_for(u.owner) as q on true),
    'expiring', (select jsonb_build_object('files', count(*), 'bytes', coalesce(sum(f.size), 0)) from (
      select f.size from holdfast.artifacts f where f.status = 'visible' and f.expires_at < holdfast.now() + interval '1 day'
        and (p_owner is null or f.owner = p_owner) limit 10000) as f),
    'doomed', (select count(*) from (select from holdfast.artifacts f where f.status = 'doomed' limit 10000) as f));
end $$;

-- Batches, newest first.
create or replace function holdfast.list_batches(p_owner text default null, p_before uuid default null, p_limit integer default 50) returns setof jsonb
language plpgsql stable security definer set search_path = '' as $$
begin
  return query select to_jsonb(b) - 'callback' || jsonb_build_object('created_at', holdfast.id_time(b.id)) from holdfast.batches b
  where (p_owner is null or b.owner = p_owner) and b.id < coalesce(p_before, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
  order by b.id desc limit least(greatest(p_limit, 1), 1000);
end $$;

-- The health of the database, as far as this login may look.
create or replace function holdfast.database_page() returns jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
begin
  return jsonb_build_object(
    'version', current_setting('server_version'), 'now', holdfast.now(), 'clock', clock_timestamp(),
    'size', pg_database_size(current_database()), 'notify_usage', pg_notification_queue_usage(),
    'connections', (select count(*) from pg_stat_activity a where a.datname = current_database()),
    'max_connections', current_setting('max_connections')::int,
    'oldest', (select jsonb_build_object('pid', a.pid, 'application', a.application_name, 'user', a.usename, 'state', a.state,
        'age_s', extract(epoch from clock_timestamp() - a.xact_start)::double precision)
      from pg_stat_activity a where a.datname = current_database() and a.xact_start is not null and a.pid <> pg_backend_pid()
        and a.backend_type = 'client backend' order by a.xact_start limit 1),
    'migrations', (select jsonb_agg(jsonb_build_object('version', m.version, 'name', m.name, 'applied_at', m.applied_at) order by m.version)
      from holdfast.migrations m),
    'tables', (select jsonb_agg(t order by t.size desc) from (
      select coalesce(p.relname, c.relname) as name, sum(s.n_live_tup)::bigint as live, sum(s.n_dead_tup)::bigint as dead,
        max(greatest(s.last_vacuum, s.last_autovacuum)) as vacuumed_at, sum(pg_total_relation_size(c.oid))::bigint as size,
        count(*) filter (where p.oid is not null) as partitions,
        min(right(c.relname, 8)) filter (where p.oid is not null and c.relname ~ '_[0-9]{8}$') as next_drop
      from pg_class c join pg_stat_user_tables s on s.relid = c.oid
      left join pg_inherits i on i.inhrelid = c.oid left join pg_class p on p.oid = i.inhparent
      where c.relnamespace = 'holdfast'::regnamespace and c.relkind = 'r'
      group by 1 order by size desc limit 40) as t),
    'keep', (select coalesce(jsonb_agg(jsonb_build_object('queue', q.name, 'keep_s', q.keep_s, 'keep_failed_s', q.keep_failed_s)), '[]')
      from holdfast.queues q where q.keep_s is not null or q.keep_failed_s is not null));
end $$;

create or replace function holdfast.link_rerun(p_old uuid, p_new uuid, p_by text) returns void
language plpgsql security definer set search_path = '' as $$
begin
  insert into holdfast.reruns (new_id, old_id, made_by, at) values (p_new, p_old, p_by, holdfast.now()) on conflict do nothing;
end $$;

-- Where a job came from and what was made of it: {of, to}.
create or replace function holdfast.job_reruns(p_id uuid) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
begin
  return jsonb_build_object('of', (select r.old_id from holdfast.reruns r where r.new_id = p_id),
    'to', (select coalesce(jsonb_agg(r.new_id order by r.new_id desc), '[]') from (
      select r.new_id from holdfast.reruns r where r.old_id = p_id order by r.new_id desc limit 10) as r));
end $$;

create or replace function holdfast.save_view(p_name text, p_page text, p_search text, p_by text, p_shared boolean default true) returns uuid
language plpgsql security definer set search_path = '' as $$
declare
  v_id uuid;
begin
  if (select count(*) from holdfast.saved_views v where v.saved_by = p_by) >= 100 then
    perform holdfast.refuse('HF003', 'There are 100 saved views already.', 'name', 'Delete one first.');
  end if;
  insert into holdfast.saved_views (id, name, page, search, saved_by, shared, created_at)
  values (holdfast.new_id(), holdfast.check_name(btrim(p_name), 'name'), p_page, left(p_search, 4000), p_by, p_shared, holdfast.now())
  on conflict (saved_by, page, name) do update set search = excluded.search, shared = excluded.shared
  returning id into v_id;
  return v_id;
end $$;

create or replace function holdfast.list_views(p_by text, p_page text default 'jobs') returns setof jsonb
language plpgsql stable security definer set search_path = '' as $$
begin
  return query select to_jsonb(v) || jsonb_build_object('own', v.saved_by = p_by) from holdfast.saved_views v
  where v.page = p_page and (v.shared or v.saved_by = p_by) order by v.saved_by <> p_by, v.name limit 200;
end $$;

create or replace function holdfast.delete_view(p_id uuid, p_by text) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  delete from holdfast.saved_views v where v.id = p_id and v.saved_by = p_by;
  return found;
end $$;

create or replace function holdfast.make_login_link(p_hash bytea, p_name text, p_role text, p_life_s double precision) returns void
language plpgsql security definer set search_path = '' as $$
begin
  insert into holdfast.login_links (hash, name, role, expires_at)
  values (p_hash, holdfast.check_name(p_name, 'name'), p_role, holdfast.now() + p_life_s * interval '1 second');
end $$;

-- Whoever comes first with the link gets in; {name, role}, or null.
create or replace function holdfast.use_login_link(p_hash bytea) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_link holdfast.login_links;
begin
  update holdfast.login_links k set used_at = holdfast.now()
  where k.hash = p_hash and k.used_at is null and k.expires_at > holdfast.now() returning * into v_link;
  return case when found then jsonb_build_object('name', v_link.name, 'role', v_link.role) end;
end $$;

call holdfast.allow('holdfast_worker', 'job_page', 'task_payload', 'task_type', 'job_attempts', 'troubles', 'files_page', 'list_batches', 'database_page', 'list_views', 'job_reruns');
call holdfast.allow('service_role', 'job_page', 'task_payload', 'task_type', 'job_attempts', 'troubles', 'files_page', 'list_batches', 'database_page', 'list_views', 'job_reruns',
  'save_view', 'delete_view', 'make_login_link', 'use_login_link', 'link_rerun');
