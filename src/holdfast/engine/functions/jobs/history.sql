-- History: what has ended, kept in partitions by the day on which it may be forgotten, and then dropped whole.
--
-- Days are made ahead by `tick`. What has no day of its own (kept very long, or nobody called tick) is in the default
-- partition and is deleted row by row. Making and dropping a day needs a short exclusive lock: it gives up after a tenth
-- of a second and is tried again by the next tick, so work never queues up behind it for longer; and it is done for one
-- table at a time by a tick that holds no other lock, so that it can be part of no deadlock.

create or replace function holdfast.make_day(p_table text, p_day date) returns boolean
language plpgsql set search_path = '' set lock_timeout = '100ms' as $$
declare
  v_name text := p_table || to_char(p_day, '_YYYYMMDD');
begin
  if to_regclass(format('holdfast.%I', v_name)) is not null then
    return false;
  end if;
  execute format('create table holdfast.%I partition of holdfast.%I for values from (%L) to (%L)', v_name, p_table,
    p_day::timestamp at time zone 'UTC', (p_day + 1)::timestamp at time zone 'UTC');
  execute format('alter table holdfast.%I enable row level security', v_name);
  execute format('alter table holdfast.%I force row level security', v_name);
  execute format('create policy owner_all on holdfast.%I to current_user using (true) with check (true)', v_name);
  return true;
exception
  when lock_not_available or deadlock_detected or duplicate_table then
    return false;
  when check_violation then
    -- The default partition holds rows of that day already; they stay there and are deleted when their time comes.
    return false;
end $$;

-- Days that rows are kept until by default: one and seven days for tasks, seven for events and lines, thirty for attempts. Makes
-- those that one table lacks, and stops at the first that cannot be made now.
create or replace function holdfast.make_days(p_now timestamptz) returns integer
language plpgsql set search_path = '' as $$
declare
  v_day date := (p_now at time zone 'UTC')::date;
  v_one record;
  v_table text;
  v_made integer := 0;
begin
  for v_one in
    select d.name, v_day + d.ahead as day from (
      select 'history' as name, a as ahead from unnest('{0,1,2,3,7,8,9}'::int[]) as a
      union all select 'events', a from unnest('{7,8,9}'::int[]) as a
      union all select 'logs', a from unnest('{7,8,9}'::int[]) as a
      union all select 'attempts', a from unnest('{30,31,32}'::int[]) as a
    ) as d
    where to_regclass(format('holdfast.%I', d.name || to_char(v_day + d.ahead, '_YYYYMMDD'))) is null
    order by d.name, d.ahead
  loop
    exit when v_one.name <> v_table;
    if holdfast.make_day(v_one.name, v_one.day) then
      v_made := v_made + 1;
      v_table := v_one.name;
    end if;
  end loop;
  return v_made;
end $$;

-- Days that are over, of one table.
create or replace function holdfast.drop_days(p_now timestamptz) returns integer
language plpgsql set search_path = '' set lock_timeout = '100ms' as $$
declare
  v_one record;
  v_table oid;
  v_count integer := 0;
begin
  for v_one in
    select c.relname, i.inhparent from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
    where i.inhparent in ('holdfast.history'::regclass, 'holdfast.attempts'::regclass, 'holdfast.events'::regclass,
        'holdfast.logs'::regclass)
      and c.relname ~ '_[0-9]{8}$' and to_date(right(c.relname, 8), 'YYYYMMDD') < (p_now at time zone 'UTC')::date
    order by i.inhparent, right(c.relname, 8)
  loop
    exit when v_one.inhparent <> v_table;
    execute format('drop table if exists holdfast.%I', v_one.relname);
    v_table := v_one.inhparent;
    v_count := v_count + 1;
  end loop;
  return v_count;
exception when lock_not_available or deadlock_detected then
  return 0;
end $$;

-- What has no day of its own, and what hangs on jobs that are gone; up to p_limit of each.
create or replace function holdfast.forget_rows(p_now timestamptz, p_limit integer) returns integer
language plpgsql set search_path = '' as $$
declare
  v_count integer := 0;
  v_more integer;
begin
  delete from holdfast.history_rest r where r.ctid = any (array(
    select h.ctid from holdfast.history_rest h where h.keep_until < p_now limit p_limit for update skip locked));
  get diagnostics v_more = row_count;
  v_count := v_count + v_more;
  delete from holdfast.attempts_rest r where r.ctid = any (array(
    select h.ctid from holdfast.attempts_rest h where h.keep_until < p_now limit p_limit for update skip locked));
  get diagnostics v_more = row_count;
  v_count := v_count + v_more;
  delete from holdfast.events_rest r where r.ctid = any (array(
    select h.ctid from holdfast.events_rest h where h.keep_until < p_now limit p_limit for update skip locked));
  get diagnostics v_more = row_count;
  v_count := v_count + v_more;
  delete from holdfast.logs_rest r where r.ctid = any (array(
    select h.ctid from holdfast.logs_rest h where h.keep_until < p_now limit p_limit for update skip locked));
  get diagnostics v_more = row_count;
  v_count := v_count + v_more;
  delete from holdfast.keys k where (k.scope, k.key) in (
    select o.scope, o.key from holdfast.keys o
    where o.keep_until < p_now and not exists (select from holdfast.tasks t where t.id = o.job_id)
      and not exists (select from holdfast.jobs j where j.id = o.job_id and j.finished_at is null)
    limit p_limit for update skip locked);
  get diagnostics v_more = row_count;
  v_count := v_count + v_more;
  delete from holdfast.batches b where b.id in (
    select o.id from holdfast.batches o where o.keep_until < p_now limit p_limit for update skip locked);
  get diagnostics v_more = row_count;
  v_count := v_count + v_more;
  delete from holdfast.steps s where (s.task_id, s.name) in (
    select o.task_id, o.name from holdfast.steps o
    where o.at < p_now - interval '1 hour' and not exists (select from holdfast.tasks t where t.id = o.task_id)
    limit p_limit for update skip locked);
  get diagnostics v_more = row_count;
  delete from holdfast.workers w where w.seen_at < p_now - interval '35 days';
  return v_count + v_more;
end $$;

-- Jobs of several tasks whose time is over, with their edges.
create or replace function holdfast.forget_jobs(p_now timestamptz, p_limit integer) returns integer
language plpgsql set search_path = '' as $$
declare
  v_ids uuid[] := array(
    select j.id from holdfast.jobs j where j.keep_until < p_now and j.archived
    order by j.keep_until limit p_limit for update skip locked);
begin
  delete from holdfast.edges e where e.job_id = any (v_ids);
  delete from holdfast.jobs j where j.id = any (v_ids);
  return cardinality(v_ids);
end $$;

-- Tasks of ended jobs into the history, job by job. A minute's grace keeps a job at hand that is run again at once.
create or replace function holdfast.archive_jobs(p_now timestamptz, p_limit integer) returns integer
language plpgsql set search_path = '' as $$
declare
  v_job record;
  v_ids uuid[];
  v_count integer := 0;
begin
  for v_job in
    select j.id, j.status from holdfast.jobs j
    where j.finished_at < p_now - interval '1 minute' and j.finished_at is not null and not j.archived
    order by j.finished_at limit p_limit for update skip locked
  loop
    v_ids := array(select t.id from holdfast.tasks t where t.job_id = v_job.id order by t.id limit greatest(p_limit - v_count, 1));
    perform holdfast.archive_tasks(v_ids, v_job.status);
    if not exists (select from holdfast.tasks t where t.job_id = v_job.id) then
      update holdfast.jobs j set archived = true,
        keep_until = greatest(j.keep_until, (select max(h.keep_until) from holdfast.history h where h.job_id = j.id))
      where j.id = v_job.id;
    end if;
    v_count := v_count + cardinality(v_ids);
    exit when v_count >= p_limit;
  end loop;
  return v_count;
end $$;

-- Stored cursors are exact as long as positions only rise; after a failover to a standby that lagged they may not have.
create or replace function holdfast.check_cursors() returns integer
language plpgsql set search_path = '' set jit = off set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  v_count integer;
begin
  with wrong as materialized (
    select l.id, t.pos from holdfast.lanes l
    cross join lateral (
      select t.pos from holdfast.tasks t where t.lane_id = l.id and t.status = 'ready' and t.pos < l.cursor order by t.pos limit 1) as t
    where l.cursor > 0
    for update of l skip locked
  )
  update holdfast.lanes l set cursor = w.pos from wrong w where l.id = w.id;
  get diagnostics v_count = row_count;
  delete from holdfast.turns h where h.ctid = any (array(
    select o.ctid from holdfast.turns o
    where exists (select from holdfast.tasks t where t.lane_id = o.lane_id and t.status = 'ready' and t.pos < o.cursor)
    for update skip locked));
  return v_count;
end $$;

-- All maintenance, up to p_limit rows a step. Safe from any number of callers at once: workers, pg_cron, by hand. Answers
-- what it did, and `more` when there is more to do at once: call again.
create or replace function holdfast.tick(p_limit integer default 1000) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_did jsonb;
  v_step text;
  v_answer text;
begin
  if p_limit is null or p_limit not between 1 and 100000 then
    perform holdfast.refuse('HF004', format('limit must be from 1 to 100000, got %s.', p_limit), 'limit');
  end if;
  v_did := jsonb_build_object('days_made', holdfast.make_days(v_now));
  if v_did ->> 'days_made' = '0' then
    v_did := v_did || jsonb_build_object('days_dropped', holdfast.drop_days(v_now));
  end if;
  if v_did - 'days_made' <> '{"days_dropped": 0}' then
    return v_did || jsonb_build_object('more', true);
  end if;
  v_did := v_did || jsonb_build_object('promoted', holdfast.promote_due('-infinity', v_now, p_limit));
  v_did := v_did || jsonb_build_object('reclaimed', holdfast.reclaim('-infinity', v_now, p_limit));
  v_did := v_did || jsonb_build_object('expired', holdfast.expire_unstarted(v_now, p_limit));
  v_did := v_did || jsonb_build_object('archived', holdfast.archive_jobs(v_now, p_limit));
  v_did := v_did || jsonb_build_object('forgotten', holdfast.forget_jobs(v_now, p_limit) + holdfast.forget_rows(v_now, p_limit));
  v_did := v_did || jsonb_build_object('cursors', holdfast.check_cursors(), 'lanes', holdfast.tidy_lanes(v_now, p_limit));
  -- Other capabilities bring their own step, if they are installed.
  foreach v_step in array '{tick_messages,tick_schedules,tick_artifacts,tick_access,tick_views,tick_webhooks}'::text[] loop
    if to_regprocedure(format('holdfast.%I(integer)', v_step)) is not null then
      execute format('select holdfast.%I($1)::text', v_step) into v_answer using p_limit;
      v_did := v_did || jsonb_build_object(v_step, v_answer);
    end if;
  end loop;
  return v_did || jsonb_build_object('more', exists (
    select from jsonb_each(v_did) as d where jsonb_typeof(d.value) = 'number' and (d.value #>> '{}')::numeric >= p_limit));
end $$;

call holdfast.allow('holdfast_worker', 'tick');
call holdfast.allow('service_role', 'tick');
