-- What alert rules look at. Each function returns a row per subject: its value in the unit of the kind, how much is
-- affected (size), details for the reader, and is_bad where the value alone does not tell. Every function is bounded:
-- a million waiting jobs cost no more than a few thousand.

-- Return what a rule observes now. p_queues is the result of list_task_queues, which several rules share.
create or replace function holdfast.observe_alert_rule(p_rule holdfast.alert_rules, p_queues jsonb, p_now timestamptz)
  returns table (subject text, value double precision, size bigint, detail jsonb, is_bad boolean)
language plpgsql stable set search_path = '' set jit = off as $$
#variable_conflict use_column
declare
  v_from timestamptz := p_now - p_rule.window_s * interval '1 second';
  v_pattern text := replace(replace(replace(replace(p_rule.subject, '\', '\\'), '%', '\%'), '_', '\_'), '*', '%');
begin
  return query
  select o.* from (
    select * from holdfast.observe_queues(p_rule.kind, p_queues, p_now)
      where p_rule.kind in ('queue_age', 'no_worker', 'queue_paused')
    union all select * from holdfast.observe_ended_tasks(p_rule.kind, v_from, p_rule.min_count)
      where p_rule.kind in ('failure_rate', 'failed_jobs')
    union all select * from holdfast.observe_dead_letters(v_from) where p_rule.kind = 'dead_letters'
    union all select * from holdfast.observe_lost_workers(v_from, p_now) where p_rule.kind = 'lost_workers'
    union all select * from holdfast.observe_schedules(p_now) where p_rule.kind = 'schedule_missed'
    union all select * from holdfast.observe_storage(p_rule.subject) where p_rule.kind = 'storage'
    union all select * from holdfast.observe_old_snapshot() where p_rule.kind = 'old_snapshot'
    union all select * from holdfast.observe_webhooks() where p_rule.kind = 'webhook_failing'
    union all select * from holdfast.observe_bulk_actions(v_from) where p_rule.kind = 'bulk_stopped'
  ) as o (subject, value, size, detail, is_bad)
  where v_pattern is null or o.subject like v_pattern;
end $$;

-- Queues with waiting tasks. The queue of notifications is left out: the API delivers them when no worker does.
create or replace function holdfast.observe_queues(p_kind text, p_queues jsonb, p_now timestamptz)
  returns table (subject text, value double precision, size bigint, detail jsonb, is_bad boolean)
language plpgsql stable set search_path = '' as $$
#variable_conflict use_column
begin
  return query
  select q ->> 'queue', case when p_kind = 'queue_paused'
      then extract(epoch from p_now - (q ->> 'paused_at')::timestamptz)::double precision
      else (q ->> 'oldest_s')::double precision end, (q ->> 'ready')::bigint,
    jsonb_strip_nulls(jsonb_build_object('exact', q -> 'ready_exact', 'oldest_s', q -> 'oldest_s',
      'workers', q -> 'workers', 'paused_by', q -> 'paused_by', 'paused_reason', left(q ->> 'paused_reason', 200))),
    null::boolean
  from jsonb_array_elements(p_queues) as q
  where (q ->> 'ready')::bigint > 0 and q ->> 'queue' <> 'alerts'
    and (p_kind = 'queue_paused') = (q ->> 'paused_at' is not null)
    and (p_kind <> 'no_worker' or (q ->> 'workers')::bigint = 0)
    -- One problem, one alert: a queue without a worker gets old too.
    and (p_kind <> 'queue_age' or not exists (select from holdfast.alerts a
      where a.kind = 'no_worker' and a.subject = q ->> 'queue' and a.status = 'firing'));
end $$;

-- Task types whose tasks failed for good, from the samples by the minute.
create or replace function holdfast.observe_ended_tasks(p_kind text, p_from timestamptz, p_min_count integer)
  returns table (subject text, value double precision, size bigint, detail jsonb, is_bad boolean)
language plpgsql stable set search_path = '' as $$
#variable_conflict use_column
begin
  return query
  select s.type, case when p_kind = 'failure_rate'
      then (sum(s.failed) / nullif(sum(s.succeeded + s.failed), 0))::double precision
      else sum(s.failed)::double precision end, sum(s.failed)::bigint,
    jsonb_build_object('failed', sum(s.failed), 'ended', sum(s.succeeded + s.failed)), null::boolean
  from holdfast.metric_samples s where s.span_s = 60 and s.at >= p_from group by s.type
  having sum(s.succeeded + s.failed) >= case when p_kind = 'failure_rate' then p_min_count else 1 end;
end $$;

-- Message queues with dead letters: those in the dead-letter queue, or those that were archived since p_from.
create or replace function holdfast.observe_dead_letters(p_from timestamptz)
  returns table (subject text, value double precision, size bigint, detail jsonb, is_bad boolean)
language plpgsql stable set search_path = '' set jit = off as $$
#variable_conflict use_column
declare
  v_max_rows constant integer := 10000;
  v_queue text;
  v_dead_queue text;
  v_count bigint;
begin
  for v_queue in select m.queue_name from pgmq.list_queues() m where holdfast.message_queue_exists(m.queue_name) loop
    v_dead_queue := (holdfast.get_message_policy(v_queue)).dead_letter_queue;
    if v_dead_queue is null then
      execute format('select count(*) from (select a.headers from %s a where a.archived_at >= $1
          order by a.archived_at desc limit $2) as a where a.headers ? ''x-holdfast-dead''',
        (holdfast.get_message_table_names(v_queue)).p_archive) into v_count using p_from, v_max_rows;
    else
      execute format('select count(*) from (select d.headers from %s d order by d.msg_id limit $2) as d
          where lower(d.headers #>> ''{x-holdfast-dead,queue}'') = lower($1)',
        (holdfast.get_message_table_names(v_dead_queue)).p_messages) into v_count using v_queue, v_max_rows;
    end if;
    if v_count > 0 then
      return query select v_queue, v_count::double precision, v_count,
        jsonb_build_object('exact', v_count < v_max_rows), null::boolean;
    end if;
  end loop;
end $$;

-- Workers that vanished instead of shutting down. One alert for all of them: they often vanish together.
create or replace function holdfast.observe_lost_workers(p_from timestamptz, p_now timestamptz)
  returns table (subject text, value double precision, size bigint, detail jsonb, is_bad boolean)
language plpgsql stable set search_path = '' as $$
#variable_conflict use_column
begin
  return query
  select 'workers', count(*)::double precision, count(*), jsonb_build_object('names',
    (array_agg(w.name order by w.seen_at desc))[1:5]), null::boolean
  from holdfast.workers w
  where w.seen_at >= p_from and (w.lost or (w.stopped_at is null and w.seen_at <= p_now - interval '2 minutes'))
  having count(*) > 0;
end $$;

-- Schedules that are late, or whose job could not be submitted.
create or replace function holdfast.observe_schedules(p_now timestamptz)
  returns table (subject text, value double precision, size bigint, detail jsonb, is_bad boolean)
language plpgsql stable set search_path = '' as $$
#variable_conflict use_column
begin
  return query
  select s.name, greatest(extract(epoch from p_now - s.next_at), 0)::double precision, 1::bigint,
    jsonb_strip_nulls(jsonb_build_object('next_at', nullif(s.next_at, 'infinity'), 'error', left(s.last_error, 200))),
    case when s.last_error is not null then true end
  from holdfast.schedules s where s.paused_at is null and (s.next_at < p_now or s.last_error is not null) limit 1000;
end $$;

-- The size of the database, or with the subject `files` the size of all stored files, in bytes.
create or replace function holdfast.observe_storage(p_subject text)
  returns table (subject text, value double precision, size bigint, detail jsonb, is_bad boolean)
language plpgsql stable set search_path = '' as $$
#variable_conflict use_column
begin
  if p_subject = 'files' then
    return query select 'files', coalesce(sum(u.bytes), 0)::double precision, coalesce(sum(u.bytes), 0)::bigint,
      '{}'::jsonb, null::boolean from holdfast.usage u;
    return;
  end if;
  return query select 'database', pg_database_size(current_database())::double precision,
    pg_database_size(current_database()), '{}'::jsonb, null::boolean;
end $$;

-- The oldest transaction that stops vacuum from removing dead rows, as far as the owner of the schema may see it.
create or replace function holdfast.observe_old_snapshot()
  returns table (subject text, value double precision, size bigint, detail jsonb, is_bad boolean)
language plpgsql stable set search_path = '' as $$
#variable_conflict use_column
begin
  return query
  select 'database', o.age_s, 1::bigint, o.detail, null::boolean from (
    select extract(epoch from clock_timestamp() - a.xact_start)::double precision as age_s,
      jsonb_build_object('pid', a.pid, 'application', left(a.application_name, 64), 'user', a.usename) as detail
    from pg_stat_activity a
    where a.datname = current_database() and a.backend_xmin is not null and a.xact_start is not null
      and a.pid <> pg_backend_pid() and a.backend_type = 'client backend'
    union all
    select extract(epoch from clock_timestamp() - x.prepared)::double precision,
      jsonb_build_object('prepared', x.gid, 'user', x.owner)
    from pg_prepared_xacts x where x.database = current_database()
  ) as o order by o.age_s desc limit 1;
end $$;

-- Webhooks that fail or were disabled because they failed. The URL is not part of it: it may contain a secret.
create or replace function holdfast.observe_webhooks()
  returns table (subject text, value double precision, size bigint, detail jsonb, is_bad boolean)
language plpgsql stable set search_path = '' as $$
#variable_conflict use_column
begin
  return query
  select w.id::text, w.failures::double precision, w.failures::bigint, jsonb_build_object('disabled', not w.active,
    'error', left(coalesce(w.disabled_reason, w.last_error), 200)), case when not w.active then true end
  from holdfast.webhooks w where w.failing_since is not null limit 1000;
end $$;

-- Bulk actions that stopped by themselves because too many jobs failed again.
create or replace function holdfast.observe_bulk_actions(p_from timestamptz)
  returns table (subject text, value double precision, size bigint, detail jsonb, is_bad boolean)
language plpgsql stable set search_path = '' as $$
#variable_conflict use_column
begin
  return query
  select b.id::text, b.failed_again::double precision, b.total, jsonb_build_object('verb', b.verb,
    'search', left(b.search, 100), 'reason', left(b.stop_reason, 200)), true
  from holdfast.bulk_actions b
  where b.status = 'stopped' and b.stop_reason like '%failed again%' and b.created_at >= p_from limit 100;
end $$;
