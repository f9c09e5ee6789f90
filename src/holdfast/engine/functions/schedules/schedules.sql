-- Schedules: jobs that are submitted at set times, once for each time, whoever looks.
--
-- A schedule holds the next time. `tick_schedules` locks a schedule that is due, passing over those that somebody else has,
-- submits its job and moves the next time on, all in one transaction; so there is one job a time, with any number of
-- workers. The name and the time are also the job's key, which holds across a restore or a clock set back.
--
-- Times that passed while nobody looked: `coalesce` makes one job for all of them, `skip` none unless the last is less than
-- a minute old, `catch_up` one for each, of the newest `most`.

create or replace function holdfast.put_schedule(
  p_name text, p_job jsonb, p_cron text default null, p_every_s double precision default null, p_timezone text default 'UTC',
  p_missed text default 'coalesce', p_most integer default 100, p_owner text default null, p_source text default null)
returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_zone text := holdfast.check_timezone(p_timezone);
  v_old holdfast.schedules;
  v_new holdfast.schedules;
begin
  perform holdfast.check_schedule(p_name, p_job, p_cron, p_every_s, p_missed, p_most);
  select * into v_old from holdfast.schedules s where s.name = p_name for update;
  insert into holdfast.schedules as s (name, cron, every_s, timezone, missed, most, job, owner, source, anchor_at, next_at, created_at, changed_at)
  values (p_name, p_cron, p_every_s, v_zone, p_missed, p_most, p_job - 'owner', coalesce(p_owner, p_job ->> 'owner'), p_source, v_now,
    (select t from holdfast.times_after(p_cron, p_every_s, v_zone, v_now, v_now, 1) as t), v_now, v_now)
  on conflict (name) do update set cron = excluded.cron, every_s = excluded.every_s, timezone = excluded.timezone, missed = excluded.missed,
    most = excluded.most, job = excluded.job, owner = excluded.owner, source = excluded.source, changed_at = excluded.changed_at,
    anchor_at = case when (s.cron, s.every_s, s.timezone) is distinct from (excluded.cron, excluded.every_s, excluded.timezone)
      then excluded.anchor_at else s.anchor_at end,
    next_at = case when (s.cron, s.every_s, s.timezone) is distinct from (excluded.cron, excluded.every_s, excluded.timezone)
      then excluded.next_at else s.next_at end
  where (s.cron, s.every_s, s.timezone, s.missed, s.most, s.job, s.owner, s.source) is distinct from
    (excluded.cron, excluded.every_s, excluded.timezone, excluded.missed, excluded.most, excluded.job, excluded.owner, excluded.source)
  returning s.* into v_new;
  if v_new.name is null then
    return holdfast.schedule_json(v_old) || '{"did": "unchanged"}';
  end if;
  if v_new.next_at is distinct from v_old.next_at then
    perform holdfast.wake_all();
  end if;
  return holdfast.schedule_json(v_new) || jsonb_build_object('did', case when v_old.name is null then 'created' else 'changed' end);
end $$;

-- The same for a name that must be new.
create or replace function holdfast.create_schedule(
  p_name text, p_job jsonb, p_cron text default null, p_every_s double precision default null, p_timezone text default 'UTC',
  p_missed text default 'coalesce', p_most integer default 100, p_owner text default null)
returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_made jsonb := holdfast.put_schedule(p_name, p_job, p_cron, p_every_s, p_timezone, p_missed, p_most, p_owner);
begin
  if v_made ->> 'did' <> 'created' then
    perform holdfast.refuse('HF003', format('There is a schedule %s already.', quote_literal(p_name)), 'name',
      'Use put_schedule to change it, or another name.');
  end if;
  return v_made - 'did';
end $$;

create or replace function holdfast.check_schedule(
  p_name text, p_job jsonb, p_cron text, p_every_s double precision, p_missed text, p_most integer) returns void
language plpgsql stable set search_path = '' as $$
begin
  perform holdfast.check_name(p_name, 'name'), holdfast.check_timing(p_cron, p_every_s, 1);
  if p_missed is null or p_missed not in ('skip', 'coalesce', 'catch_up') then
    perform holdfast.refuse('HF004', format('missed must be skip, coalesce or catch_up, got %s.', quote_nullable(p_missed)), 'missed');
  end if;
  if p_most is null or p_most not between 1 and 1000 then
    perform holdfast.refuse('HF004', format('most must be from 1 to 1000, got %s.', coalesce(p_most::text, 'nothing')), 'most');
  end if;
  if jsonb_typeof(p_job) is distinct from 'object' or not p_job ?| '{type,tasks}' then
    perform holdfast.refuse('HF004', 'The job of a schedule must be what submit takes: an object with a type or tasks.', 'job');
  end if;
  if p_job ?| '{key,run_at,expires_at,batch}' then
    perform holdfast.refuse('HF004', 'A schedule makes many jobs: key, run_at, expires_at and batch cannot be the same for all.', 'job',
      'Use unique_key to leave a run out while the one before is still going on.');
  end if;
  if not p_job ? 'tasks' then
    perform holdfast.check_name(p_job ->> 'type', 'type');
  end if;
end $$;

create or replace function holdfast.schedule_json(p_schedule holdfast.schedules) returns jsonb
language plpgsql stable set search_path = '' as $$
begin
  return jsonb_build_object('name', p_schedule.name, 'cron', p_schedule.cron, 'every_s', p_schedule.every_s, 'timezone', p_schedule.timezone,
    'missed', p_schedule.missed, 'most', p_schedule.most, 'job', p_schedule.job, 'owner', p_schedule.owner, 'source', p_schedule.source,
    'next_at', case when p_schedule.paused_at is null then p_schedule.next_at end, 'last_at', p_schedule.last_at, 'last_job', p_schedule.last_job,
    'last_error', p_schedule.last_error, 'paused_at', p_schedule.paused_at, 'paused_by', p_schedule.paused_by,
    'created_at', p_schedule.created_at);
end $$;

-- By name, from the one after p_after on. Users see their own.
create or replace function holdfast.list_schedules(p_owner text default null, p_after text default null, p_limit integer default 100)
returns setof jsonb
language plpgsql stable security definer set search_path = '' as $$
declare
  v_owner text := coalesce(holdfast.calling_user(), p_owner);
begin
  return query
  select holdfast.schedule_json(s) from holdfast.schedules s
  where (v_owner is null or s.owner = v_owner) and (p_after is null or s.name > p_after)
  order by s.name limit least(greatest(coalesce(p_limit, 100), 1), 1000);
end $$;

create or replace function holdfast.get_schedule(p_name text) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
begin
  return holdfast.schedule_json(holdfast.schedule_named(p_name));
end $$;

create or replace function holdfast.schedule_named(p_name text) returns holdfast.schedules
language plpgsql stable set search_path = '' as $$
declare
  v_user text := holdfast.calling_user();
  v_found holdfast.schedules;
begin
  select * into v_found from holdfast.schedules s where s.name = p_name and (v_user is null or s.owner = v_user);
  if not found then
    perform holdfast.refuse('HF002', format('There is no schedule %s.', coalesce(quote_literal(left(p_name, 80)), 'without a name')), 'name');
  end if;
  return v_found;
end $$;

create or replace function holdfast.preview_schedule(p_name text, p_count integer default 10) returns setof timestamptz
language plpgsql stable security definer set search_path = '' as $$
declare
  v_one holdfast.schedules := holdfast.schedule_named(p_name);
begin
  if p_count is null or p_count not between 1 and 1000 then
    perform holdfast.refuse('HF004', format('count must be from 1 to 1000, got %s.', coalesce(p_count::text, 'nothing')), 'count');
  end if;
  return query select * from holdfast.times_after(v_one.cron, v_one.every_s, v_one.timezone, v_one.anchor_at, holdfast.now(), p_count);
end $$;

-- A paused schedule makes no jobs. What passes meanwhile is not made up for: it goes on with the next time after the resume.
create or replace function holdfast.pause_schedule(p_name text, p_by text default null) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  perform holdfast.schedule_named(p_name);
  update holdfast.schedules s set paused_at = holdfast.now(), paused_by = coalesce(p_by, session_user)
  where s.name = p_name and s.paused_at is null;
  return found;
end $$;

create or replace function holdfast.resume_schedule(p_name text) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  perform holdfast.schedule_named(p_name);
  update holdfast.schedules s set paused_at = null, paused_by = null,
    next_at = coalesce((select t from holdfast.times_after(s.cron, s.every_s, s.timezone, s.anchor_at, holdfast.now(), 1) as t), 'infinity')
  where s.name = p_name and s.paused_at is not null;
  if not found then
    return false;
  end if;
  perform holdfast.wake_all();
  return true;
end $$;

create or replace function holdfast.delete_schedule(p_name text) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  delete from holdfast.schedules s where s.name = p_name;
  return found;
end $$;

-- Now, besides its times, also while it is paused.
create or replace function holdfast.run_schedule(p_name text) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_one holdfast.schedules := holdfast.schedule_named(p_name);
  v_job jsonb := holdfast.submit(holdfast.scheduled_job(v_one, v_now) - 'key');
begin
  update holdfast.schedules s set last_at = v_now, last_job = (v_job ->> 'id')::uuid, last_error = null where s.name = p_name;
  return v_job;
end $$;

-- What is submitted for one time.
create or replace function holdfast.scheduled_job(p_schedule holdfast.schedules, p_at timestamptz) returns jsonb
language plpgsql stable set search_path = '' as $$
declare
  v_at text := to_char(p_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"');
begin
  return p_schedule.job || jsonb_strip_nulls(jsonb_build_object('owner', p_schedule.owner,
    'key', 'schedule:' || p_schedule.name || ':' || v_at,
    'labels', case when jsonb_typeof(p_schedule.job -> 'labels') = 'object' then p_schedule.job -> 'labels' else '{}' end
      || jsonb_build_object('schedule', p_schedule.name, 'schedule_at', v_at)));
end $$;

-- The times that are due of a schedule and get a job, oldest first.
create or replace function holdfast.due_times(p_schedule holdfast.schedules, p_now timestamptz) returns setof timestamptz
language plpgsql stable set search_path = '' as $$
begin
  return query
  select t.at from (
    select b as at from holdfast.times_before(p_schedule.cron, p_schedule.every_s, p_schedule.timezone, p_schedule.anchor_at, p_now,
      p_schedule.next_at - interval '1 microsecond', case p_schedule.missed when 'catch_up' then p_schedule.most else 1 end) as b
  ) as t
  where p_schedule.missed <> 'skip' or t.at > p_now - interval '1 minute'
  order by t.at;
end $$;

-- Submits what is due; how many jobs. One that cannot be submitted is noted with the schedule, which goes on; one that would
-- have to wait for somebody (a unique key in an open transaction) is left for the next call.
create or replace function holdfast.tick_schedules(p_limit integer default 1000) returns integer
language plpgsql security definer set search_path = '' set lock_timeout = '200ms' as $$
declare
  v_now timestamptz := holdfast.now();
  v_one holdfast.schedules;
  v_at timestamptz;
  v_next timestamptz;
  v_count integer := 0;
begin
  for v_one in
    select * from holdfast.schedules s where s.paused_at is null and s.next_at <= v_now
    order by s.next_at limit p_limit for update skip locked
  loop
    v_next := null;
    for v_at in select * from holdfast.due_times(v_one, v_now) loop
      begin
        v_one.last_job := (holdfast.submit(holdfast.scheduled_job(v_one, v_at)) ->> 'id')::uuid;
        v_one.last_error := null;
        v_count := v_count + 1;
      exception
        when lock_not_available or deadlock_detected then v_next := v_at;
        when serialization_failure then raise;
        when others then v_one.last_error := holdfast.bounded(sqlerrm, 1000);
      end;
      exit when v_next is not null;
      v_one.last_at := v_at;
    end loop;
    update holdfast.schedules s set last_at = v_one.last_at, last_job = v_one.last_job, last_error = v_one.last_error,
      next_at = coalesce(v_next, (select t from holdfast.times_after(s.cron, s.every_s, s.timezone, s.anchor_at, v_now, 1) as t), 'infinity')
    where s.name = v_one.name;
    exit when v_count >= p_limit;
  end loop;
  return v_count;
end $$;

-- The schedules of an application's code, written when its worker starts: each is {name, job, cron, every_s, timezone,
-- missed, most, owner}. Those that the code no longer has are only named: {created, changed, unchanged, missing}.
create or replace function holdfast.register_schedules(p_source text, p_schedules jsonb) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_one jsonb;
  v_did text;
  v_answer jsonb := '{"created": [], "changed": [], "unchanged": []}';
begin
  perform holdfast.check_name(p_source, 'source');
  for v_one in select s from jsonb_array_elements(p_schedules) as s order by s ->> 'name' loop
    v_did := holdfast.put_schedule(v_one ->> 'name', v_one -> 'job', v_one ->> 'cron', (v_one ->> 'every_s')::double precision,
      coalesce(v_one ->> 'timezone', 'UTC'), coalesce(v_one ->> 'missed', 'coalesce'), coalesce((v_one ->> 'most')::int, 100),
      v_one ->> 'owner', p_source) ->> 'did';
    v_answer := jsonb_set(v_answer, array[v_did], (v_answer -> v_did) || (v_one -> 'name'));
  end loop;
  return v_answer || jsonb_build_object('missing', coalesce((
    select jsonb_agg(s.name order by s.name) from holdfast.schedules s
    where s.source = p_source and s.name not in (select n ->> 'name' from jsonb_array_elements(p_schedules) as n)), '[]'));
end $$;

-- Every sleeping worker looks anew when something falls due.
create or replace function holdfast.wake_all() returns void
language plpgsql set search_path = '' as $$
begin
  if exists (select from holdfast.workers w where w.sleeping) then
    perform pg_notify('holdfast', '');
  end if;
end $$;

do $$
begin
  if exists (select from pg_roles where rolname = 'authenticated')
    and not exists (select from pg_policies where schemaname = 'holdfast' and tablename = 'schedules' and policyname = 'own_rows') then
    create policy own_rows on holdfast.schedules for select to authenticated using (owner = (select holdfast.current_user_id()));
  end if;
end $$;

call holdfast.allow_read('authenticated', 'schedules');
call holdfast.allow('authenticated', 'list_schedules', 'get_schedule', 'preview_schedule');
call holdfast.allow('holdfast_worker', 'put_schedule', 'create_schedule', 'list_schedules', 'get_schedule', 'preview_schedule', 'pause_schedule',
  'resume_schedule', 'delete_schedule', 'run_schedule', 'tick_schedules', 'register_schedules');
call holdfast.allow('service_role', 'put_schedule', 'create_schedule', 'list_schedules', 'get_schedule', 'preview_schedule', 'pause_schedule',
  'resume_schedule', 'delete_schedule', 'run_schedule', 'tick_schedules', 'register_schedules');
