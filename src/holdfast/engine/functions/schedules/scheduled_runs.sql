-- Submit the jobs of schedules that are due, once for each time, whoever calls.
--
-- A schedule stores its next time. `tick_schedules` locks a schedule that is due, skips those that another
-- transaction has locked, submits the job and moves the next time on, all in one transaction. So each time has one
-- job, with any number of workers. The name and the time are also the key of the job, which stays valid across a
-- restore or a clock that is set back.
--
-- Times that passed while no one called: `coalesce` submits one job for all of them, `skip` none unless the last is
-- less than a minute old, `catch_up` one for each of the newest `max_catch_up`.

-- Submit the job of a schedule now, in addition to its times, even while it is paused.
create or replace function holdfast.run_schedule(p_name text) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_schedule holdfast.schedules := holdfast.get_schedule_row(p_name);
  v_job jsonb := holdfast.submit(holdfast.build_scheduled_job(v_schedule, v_now) - 'key');
begin
  update holdfast.schedules s set last_at = v_now, last_job = (v_job ->> 'id')::uuid, last_error = null
    where s.name = p_name;
  return v_job;
end $$;

-- Return the job that a schedule submits for one time.
create or replace function holdfast.build_scheduled_job(p_schedule holdfast.schedules, p_at timestamptz) returns jsonb
language plpgsql stable set search_path = '' as $$
declare
  v_at text := to_char(p_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"');
begin
  return p_schedule.job || jsonb_strip_nulls(jsonb_build_object('owner', p_schedule.owner,
    'key', 'schedule:' || p_schedule.name || ':' || v_at,
    'labels', case when jsonb_typeof(p_schedule.job -> 'labels') = 'object' then p_schedule.job -> 'labels'
      else '{}' end
      || jsonb_build_object('schedule', p_schedule.name, 'schedule_at', v_at)));
end $$;

-- List the times of a schedule that are due and for which a job is submitted, oldest first.
create or replace function holdfast.list_due_schedule_times(p_schedule holdfast.schedules, p_now timestamptz)
  returns setof timestamptz
language plpgsql stable set search_path = '' as $$
begin
  return query
  select t.at from (
    select b as at from holdfast.list_schedule_times_before(p_schedule.cron, p_schedule.every_s, p_schedule.timezone,
      p_schedule.anchor_at, p_now,
      p_schedule.next_at - interval '1 microsecond', case p_schedule.missed when 'catch_up'
        then p_schedule.max_catch_up else 1 end) as b
  ) as t
  where p_schedule.missed <> 'skip' or t.at > p_now - interval '1 minute'
  order by t.at;
end $$;

-- Submit the jobs that are due and return their number. A schedule that cannot be evaluated does not stop the others:
-- its error is stored with it, and it is tried again in five minutes.
create or replace function holdfast.tick_schedules(p_limit integer default 1000) returns integer
language plpgsql security definer set search_path = '' set lock_timeout = '200ms' as $$
declare
  v_now timestamptz := holdfast.now();
  v_schedule holdfast.schedules;
  v_count integer := 0;
begin
  for v_schedule in
    select * from holdfast.schedules s where s.paused_at is null and s.next_at <= v_now
    order by s.next_at limit p_limit for update skip locked
  loop
    begin
      v_count := v_count + holdfast.submit_due_runs(v_schedule, v_now);
      if v_schedule.last_error is not null then
        delete from holdfast.maintenance_problems p where p.kind = 'schedule' and p.subject = v_schedule.name;
      end if;
    exception when others then
      if holdfast.is_temporary_error(sqlstate) then
        raise;
      end if;
      perform holdfast.record_maintenance_problem('schedule', v_schedule.name, sqlerrm, v_now);
      update holdfast.schedules s set last_error = holdfast.truncate_middle(sqlerrm, 1000),
        next_at = v_now + interval '5 minutes'
      where s.name = v_schedule.name;
    end;
    exit when v_count >= p_limit;
  end loop;
  return v_count;
end $$;

-- Submit the jobs of one locked schedule that are due, and set its next time. Return the number of jobs. The error of
-- a job that cannot be submitted is stored with the schedule, which continues. A job that would have to wait for
-- another transaction (a unique key) is left for the next call.
create or replace function holdfast.submit_due_runs(p_schedule holdfast.schedules, p_now timestamptz) returns integer
language plpgsql set search_path = '' as $$
declare
  v_at timestamptz;
  v_next timestamptz;
  v_count integer := 0;
begin
  for v_at in select * from holdfast.list_due_schedule_times(p_schedule, p_now) loop
    begin
      p_schedule.last_job := (holdfast.submit(holdfast.build_scheduled_job(p_schedule, v_at)) ->> 'id')::uuid;
      p_schedule.last_error := null;
      v_count := v_count + 1;
    exception
      when lock_not_available or deadlock_detected then v_next := v_at;
      when serialization_failure then raise;
      when others then p_schedule.last_error := holdfast.truncate_middle(sqlerrm, 1000);
    end;
    exit when v_next is not null;
    p_schedule.last_at := v_at;
  end loop;
  update holdfast.schedules s set last_at = p_schedule.last_at, last_job = p_schedule.last_job,
    last_error = p_schedule.last_error,
    next_at = coalesce(v_next, (select t from holdfast.list_schedule_times_after(s.cron, s.every_s, s.timezone,
      s.anchor_at,
      p_now, 1) as t), 'infinity')
  where s.name = p_schedule.name;
  return v_count;
end $$;

-- Return when a schedule runs and the status of one of its jobs, or null for a schedule of an end user.
create or replace function holdfast.get_scheduled_run(p_schedule text, p_job_id uuid) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
begin
  return (
  select jsonb_build_object('cron', s.cron, 'every_s', s.every_s, 'timezone', s.timezone,
    'status', holdfast.get_job_status(p_job_id))
  from holdfast.schedules s where s.name = p_schedule and s.owner is null);
end $$;

call holdfast.grant_execute('holdfast_worker', 'run_schedule', 'get_scheduled_run');
call holdfast.grant_execute('service_role', 'run_schedule');
