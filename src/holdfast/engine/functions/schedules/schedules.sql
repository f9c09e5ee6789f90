-- Schedules: create, change, list, pause and delete them. scheduled_runs.sql submits their jobs.

-- Create or change a schedule. Return it with `change`: created, changed or unchanged.
create or replace function holdfast.put_schedule(
  p_name text, p_job jsonb, p_cron text default null, p_every_s double precision default null,
    p_timezone text default 'UTC',
  p_missed text default 'coalesce', p_max_catch_up integer default 100, p_owner text default null,
    p_source text default null)
returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_zone text := holdfast.check_timezone(p_timezone);
  v_old holdfast.schedules;
  v_new holdfast.schedules;
begin
  perform holdfast.validate_schedule(p_name, p_job, p_cron, p_every_s, p_missed, p_max_catch_up),
    holdfast.validate_job_request(p_job, coalesce(p_owner, p_job ->> 'owner'), 'job'),
    holdfast.check_text(p_source, 'source', 200);
  select * into v_old from holdfast.schedules s where s.name = p_name for update;
  insert into holdfast.schedules as s (name, cron, every_s, timezone, missed, max_catch_up, job, owner, source,
    anchor_at, next_at, created_at, changed_at)
  values (p_name, p_cron, p_every_s, v_zone, p_missed, p_max_catch_up, p_job - 'owner',
    coalesce(p_owner, p_job ->> 'owner'), p_source, v_now,
    (select t from holdfast.list_schedule_times_after(p_cron, p_every_s, v_zone, v_now, v_now, 1) as t), v_now, v_now)
  on conflict (name) do update set cron = excluded.cron, every_s = excluded.every_s, timezone = excluded.timezone,
    missed = excluded.missed,
    max_catch_up = excluded.max_catch_up, job = excluded.job, owner = excluded.owner, source = excluded.source,
      changed_at = excluded.changed_at,
    anchor_at = case when (s.cron, s.every_s, s.timezone) is distinct from (excluded.cron, excluded.every_s,
      excluded.timezone)
      then excluded.anchor_at else s.anchor_at end,
    next_at = case when (s.cron, s.every_s, s.timezone) is distinct from (excluded.cron, excluded.every_s,
      excluded.timezone)
      then excluded.next_at else s.next_at end
  where (s.cron, s.every_s, s.timezone, s.missed, s.max_catch_up, s.job, s.owner, s.source) is distinct from
    (excluded.cron, excluded.every_s, excluded.timezone, excluded.missed, excluded.max_catch_up, excluded.job,
      excluded.owner, excluded.source)
  returning s.* into v_new;
  if v_new.name is null then
    return holdfast.schedule_to_json(v_old) || '{"change": "unchanged"}';
  end if;
  if v_new.next_at is distinct from v_old.next_at then
    perform holdfast.wake_all_workers();
  end if;
  return holdfast.schedule_to_json(v_new) || jsonb_build_object('change', case when v_old.name is null then 'created'
    else 'changed' end);
end $$;

-- Create a schedule; HF003 if the name exists.
create or replace function holdfast.create_schedule(
  p_name text, p_job jsonb, p_cron text default null, p_every_s double precision default null,
    p_timezone text default 'UTC',
  p_missed text default 'coalesce', p_max_catch_up integer default 100, p_owner text default null)
returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_schedule jsonb := holdfast.put_schedule(p_name, p_job, p_cron, p_every_s, p_timezone, p_missed, p_max_catch_up,
    p_owner);
begin
  if v_schedule ->> 'change' <> 'created' then
    perform holdfast.raise_error('HF003', format('Schedule %s already exists.', quote_literal(p_name)), 'name',
      'Use put_schedule to change it, or another name.');
  end if;
  return v_schedule - 'change';
end $$;

-- Raise HF004 for an invalid schedule.
create or replace function holdfast.validate_schedule(
  p_name text, p_job jsonb, p_cron text, p_every_s double precision, p_missed text, p_max_catch_up integer) returns void
language plpgsql stable set search_path = '' as $$
begin
  perform holdfast.check_name(p_name, 'name'), holdfast.validate_schedule_timing(p_cron, p_every_s, 1);
  if p_missed is null or p_missed not in ('skip', 'coalesce', 'catch_up') then
    perform holdfast.raise_error('HF004', format('missed must be skip, coalesce or catch_up, got %s.',
      quote_nullable(p_missed)), 'missed');
  end if;
  if p_max_catch_up is null or p_max_catch_up not between 1 and 1000 then
    perform holdfast.raise_error('HF004', format('max_catch_up must be from 1 to 1000, got %s.',
      coalesce(p_max_catch_up::text, 'nothing')), 'max_catch_up');
  end if;
  if jsonb_typeof(p_job) is distinct from 'object' or not p_job ?| '{type,tasks}' then
    perform holdfast.raise_error('HF004',
      'The job of a schedule must be an object with a type or tasks, as submit takes it.', 'job');
  end if;
  if p_job ?| '{key,run_at,expires_at,batch}' then
    perform holdfast.raise_error('HF004',
      'The job of a schedule cannot have key, run_at, expires_at or batch: they would be the same for every run.',
        'job',
      'Use unique_key to skip a run while the previous run is still unfinished.');
  end if;
end $$;

-- Return a schedule as JSON.
create or replace function holdfast.schedule_to_json(p_schedule holdfast.schedules) returns jsonb
language plpgsql stable set search_path = '' as $$
begin
  return jsonb_build_object('name', p_schedule.name, 'cron', p_schedule.cron, 'every_s', p_schedule.every_s,
    'timezone', p_schedule.timezone,
    'missed', p_schedule.missed, 'max_catch_up', p_schedule.max_catch_up, 'job', p_schedule.job, 'owner',
      p_schedule.owner, 'source', p_schedule.source,
    'next_at', case when p_schedule.paused_at is null then p_schedule.next_at end, 'last_at', p_schedule.last_at,
      'last_job', p_schedule.last_job,
    'last_error', p_schedule.last_error, 'paused_at', p_schedule.paused_at, 'paused_by', p_schedule.paused_by,
    'created_at', p_schedule.created_at);
end $$;

-- List schedules by name. p_after is the last name of the previous page. Users see their own schedules.
create or replace function holdfast.list_schedules(p_owner text default null, p_after text default null,
  p_limit integer default 100)
returns setof jsonb
language plpgsql stable security definer set search_path = '' as $$
declare
  v_owner text := coalesce(holdfast.get_end_user_id(), p_owner);
begin
  return query
  select holdfast.schedule_to_json(s) from holdfast.schedules s
  where (v_owner is null or s.owner = v_owner) and (p_after is null or s.name > p_after)
  order by s.name limit least(greatest(coalesce(p_limit, 100), 1), 1000);
end $$;

-- Return a schedule as JSON, or raise HF002.
create or replace function holdfast.get_schedule(p_name text) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
begin
  return holdfast.schedule_to_json(holdfast.get_schedule_row(p_name));
end $$;

-- Return the row of a schedule that the caller may see, or raise HF002.
create or replace function holdfast.get_schedule_row(p_name text) returns holdfast.schedules
language plpgsql stable set search_path = '' as $$
declare
  v_user text := holdfast.get_end_user_id();
  v_schedule holdfast.schedules;
begin
  select * into v_schedule from holdfast.schedules s where s.name = p_name and (v_user is null or s.owner = v_user);
  if not found then
    perform holdfast.raise_error('HF002', format('Schedule %s does not exist.',
      coalesce(quote_literal(left(p_name, 80)), 'without a name')), 'name');
  end if;
  return v_schedule;
end $$;

-- List the next p_count times of a schedule.
create or replace function holdfast.preview_schedule(p_name text, p_count integer default 10) returns setof timestamptz
language plpgsql stable security definer set search_path = '' as $$
declare
  v_schedule holdfast.schedules := holdfast.get_schedule_row(p_name);
begin
  if p_count is null or p_count not between 1 and 1000 then
    perform holdfast.raise_error('HF004', format('count must be from 1 to 1000, got %s.',
      coalesce(p_count::text, 'nothing')), 'count');
  end if;
  return query select * from holdfast.list_schedule_times_after(v_schedule.cron, v_schedule.every_s,
    v_schedule.timezone,
    v_schedule.anchor_at, holdfast.now(), p_count);
end $$;

-- Pause a schedule. Times that pass while it is paused are not made up: it continues with the next time after the
-- resume.
create or replace function holdfast.pause_schedule(p_name text, p_by text default null) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  perform holdfast.get_schedule_row(p_name);
  update holdfast.schedules s set paused_at = holdfast.now(), paused_by = coalesce(left(p_by, 200), session_user)
  where s.name = p_name and s.paused_at is null;
  return found;
end $$;

-- Resume a paused schedule. False if it was not paused.
create or replace function holdfast.resume_schedule(p_name text) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  perform holdfast.get_schedule_row(p_name);
  update holdfast.schedules s set paused_at = null, paused_by = null,
    next_at = coalesce((select t from holdfast.list_schedule_times_after(s.cron, s.every_s, s.timezone, s.anchor_at,
      holdfast.now(), 1) as t), 'infinity')
  where s.name = p_name and s.paused_at is not null;
  if not found then
    return false;
  end if;
  perform holdfast.wake_all_workers();
  return true;
end $$;

-- Delete a schedule. False if it does not exist.
create or replace function holdfast.delete_schedule(p_name text) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  delete from holdfast.schedules s where s.name = p_name;
  return found;
end $$;

-- Store the schedules that the code of an application declares, when its worker starts: each is {name, job, cron,
-- every_s, timezone, missed, max_catch_up, owner}. Schedules that the code no longer declares are only listed:
-- {created, changed, unchanged, missing}.
create or replace function holdfast.register_schedules(p_source text, p_schedules jsonb) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_schedule jsonb;
  v_change text;
  v_response jsonb := '{"created": [], "changed": [], "unchanged": []}';
begin
  perform holdfast.check_name(p_source, 'source');
  for v_schedule in select s from jsonb_array_elements(p_schedules) as s order by s ->> 'name' loop
    v_change := holdfast.put_schedule(v_schedule ->> 'name', v_schedule -> 'job', v_schedule ->> 'cron',
      (v_schedule ->> 'every_s')::double precision,
      coalesce(v_schedule ->> 'timezone', 'UTC'), coalesce(v_schedule ->> 'missed', 'coalesce'),
        coalesce((v_schedule ->> 'max_catch_up')::int, 100),
      v_schedule ->> 'owner', p_source) ->> 'change';
    v_response := jsonb_set(v_response, array[v_change], (v_response -> v_change) || (v_schedule -> 'name'));
  end loop;
  return v_response || jsonb_build_object('missing', coalesce((
    select jsonb_agg(s.name order by s.name) from holdfast.schedules s
    where s.source = p_source and s.name not in (select n ->> 'name' from jsonb_array_elements(p_schedules) as n)),
      '[]'));
end $$;

do $$
begin
  if exists (select from pg_roles where rolname = 'authenticated') and not exists (
    select from pg_policies where schemaname = 'holdfast' and tablename = 'schedules' and policyname = 'own_rows')
  then
    create policy own_rows on holdfast.schedules for select to authenticated
      using (owner = (select holdfast.get_user_id_from_jwt_claims()));
  end if;
end $$;

call holdfast.grant_execute('holdfast_worker', 'put_schedule', 'create_schedule', 'list_schedules', 'get_schedule',
  'preview_schedule',
  'pause_schedule', 'resume_schedule', 'delete_schedule', 'register_schedules');
call holdfast.grant_execute('service_role', 'put_schedule', 'create_schedule', 'list_schedules', 'get_schedule',
  'preview_schedule',
  'pause_schedule', 'resume_schedule', 'delete_schedule', 'register_schedules');
