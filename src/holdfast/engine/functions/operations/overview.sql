-- Overview: problems, batches and the health of the database, for dashboards. Every result is bounded.

-- Count tasks that failed since then, tasks that are retrying or scheduled, and unfinished jobs of several tasks
-- (`waiting`). Each count is exact up to p_max_rows and an estimate above; `failed_exact` and so on tell which.
create or replace function holdfast.count_problems(p_since timestamptz, p_max_rows integer default 10000) returns jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
declare
  v_failed bigint := (select coalesce(sum(n.n), 0) from holdfast.task_policies k cross join lateral (
    select count(*) as n from (select from holdfast.history h where h.status = 'failed' and h.policy_id = k.id
      and h.finished_at >= p_since limit p_max_rows + 1) as f) as n);
  v_scheduled bigint;
  v_retrying bigint;
  v_waiting bigint := (select count(*) from (select from holdfast.jobs j where j.finished_at is null
    limit p_max_rows + 1) as f);
  v_percent double precision;
begin
  select count(*), count(*) filter (where t.failing) into v_scheduled, v_retrying from (
    select t.failures + t.crashes > 0 as failing from holdfast.tasks t where t.status = 'scheduled'
    limit p_max_rows + 1) as t;
  if v_scheduled > p_max_rows then
    select greatest(sum(e.tasks), v_scheduled), greatest(sum(e.tasks) filter (where e.retrying), v_retrying)
    into v_scheduled, v_retrying from holdfast.estimate_live_tasks() as e where e.status = 'scheduled';
  end if;
  if v_failed > p_max_rows then -- the samples of the charts count without a limit, up to the minute before
    v_failed := greatest(v_failed, (select coalesce(sum(m.failed), 0) from holdfast.metric_samples m
      where m.span_s = 60 and m.at >= p_since));
  end if;
  if v_waiting > p_max_rows then
    v_percent := holdfast.compute_sample_percent(100, 'holdfast.jobs');
    v_waiting := greatest(v_waiting, (select round(count(*) * 100 / v_percent)
      from holdfast.jobs j tablesample system (v_percent) repeatable (1) where j.finished_at is null));
  end if;
  return jsonb_build_object('failed', v_failed, 'failed_exact', v_failed <= p_max_rows,
    'retrying', v_retrying, 'retrying_exact', v_scheduled <= p_max_rows,
    'scheduled', v_scheduled, 'scheduled_exact', v_scheduled <= p_max_rows,
    'waiting', v_waiting, 'waiting_exact', v_waiting <= p_max_rows);
end $$;

-- List batches, newest first.
create or replace function holdfast.list_batches(p_owner text default null, p_before uuid default null,
  p_limit integer default 50) returns setof jsonb
language plpgsql stable security definer set search_path = '' as $$
begin
  return query select to_jsonb(b) - 'callback' || jsonb_build_object('created_at', holdfast.get_id_time(b.id))
    from holdfast.batches b
  where (p_owner is null or b.owner = p_owner) and b.id < coalesce(p_before, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
  order by b.id desc limit least(greatest(p_limit, 1), 1000);
end $$;

-- Tell for each of these batches whether a job of it runs now, and which paused queues its jobs wait in. Reads at most
-- 1,000 unfinished tasks of a batch.
create or replace function holdfast.list_batch_activity(p_ids uuid[])
  returns table (batch_id uuid, running boolean, paused_queues text[])
language plpgsql stable security definer set search_path = '' set jit = off as $$
begin
  return query
  select b.id, coalesce(bool_or(f.status = 'running'), false),
    array_agg(distinct q.name) filter (where q.name is not null)
  from unnest(p_ids[1:1000]) as b (id)
  left join lateral (
    (select t.status, t.lane_id from holdfast.tasks t where t.batch_id = b.id and t.finished_at is null limit 1000)
    union all
    (select t.status, t.lane_id from holdfast.jobs j join holdfast.tasks t on t.job_id = j.id
      where j.batch_id = b.id and j.finished_at is null and t.finished_at is null limit 1000)) as f on true
  left join holdfast.lanes l on l.id = f.lane_id
  left join holdfast.queues q on q.name = l.queue and q.paused_at is not null
  group by b.id;
end $$;

-- Return the health of the database, as far as the owner of the schema may see it.
create or replace function holdfast.get_database_health() returns jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
begin
  return jsonb_build_object(
    'version', current_setting('server_version'), 'now', holdfast.now(), 'clock', clock_timestamp(),
    'size', pg_database_size(current_database()), 'notify_usage', pg_notification_queue_usage(),
    'connections', (select count(*) from pg_stat_activity a where a.datname = current_database()),
    'max_connections', current_setting('max_connections')::int,
    'oldest', (select jsonb_build_object('pid', a.pid, 'application', a.application_name, 'user', a.usename, 'state',
      a.state,
        'age_s', extract(epoch from clock_timestamp() - a.xact_start)::double precision)
      from pg_stat_activity a where a.datname = current_database() and a.xact_start is not null
        and a.pid <> pg_backend_pid()
        and a.backend_type = 'client backend' order by a.xact_start limit 1),
    'migrations', (select jsonb_agg(jsonb_build_object('version', m.version, 'name', m.name, 'applied_at',
      m.applied_at) order by m.version)
      from holdfast.migrations m),
    'tables', (select jsonb_agg(t order by t.size desc) from (
      select coalesce(p.relname, c.relname) as name, sum(s.n_live_tup)::bigint as live,
        sum(s.n_dead_tup)::bigint as dead,
        max(greatest(s.last_vacuum, s.last_autovacuum)) as vacuumed_at,
          sum(pg_total_relation_size(c.oid))::bigint as size,
        count(*) filter (where p.oid is not null) as partitions,
        min(right(c.relname, 8)) filter (where p.oid is not null and c.relname ~ '_[0-9]{8}$') as next_drop
      from pg_class c join pg_stat_user_tables s on s.relid = c.oid
      left join pg_inherits i on i.inhrelid = c.oid left join pg_class p on p.oid = i.inhparent
      where c.relnamespace = 'holdfast'::regnamespace and c.relkind = 'r'
      group by 1 order by size desc limit 40) as t),
    'keep', (select coalesce(jsonb_agg(jsonb_build_object('queue', q.name, 'keep_s', q.keep_s, 'keep_failed_s',
      q.keep_failed_s)), '[]')
      from holdfast.queues q where q.keep_s is not null or q.keep_failed_s is not null));
end $$;

call holdfast.grant_execute('holdfast_worker', 'count_problems', 'list_batches', 'list_batch_activity',
  'get_database_health');
call holdfast.grant_execute('service_role', 'count_problems', 'list_batches', 'list_batch_activity',
  'get_database_health');
