-- The next and the last times of a schedule. Windows that grow find them however rare they are.

-- Return the IANA name of a time zone, or raise HF004. PostgreSQL itself also takes abbreviations and rules such as
-- Foo+3, and so would accept a typing error.
create or replace function holdfast.check_timezone(p_timezone text) returns text
language plpgsql stable set search_path = '' as $$
declare
  v_name text;
begin
  if p_timezone in ('UTC', 'Etc/UTC') then
    return p_timezone;
  end if;
  if length(p_timezone) < 100 then
    select z.name into v_name from pg_timezone_names z where lower(z.name) = lower(p_timezone) and z.name !~ '^posix';
  end if;
  if v_name is null then
    perform holdfast.raise_error('HF004', format('Time zone %s does not exist.',
      coalesce(quote_literal(left(p_timezone, 60)), 'without a name')),
      'timezone', 'Use an IANA name such as Europe/Madrid.');
  end if;
  return v_name;
end $$;

-- List the first p_count times of a cron expression after a time; fewer if it has no more within fifty years.
create or replace function holdfast.list_cron_times_after(p_cron text, p_timezone text, p_after timestamptz,
  p_count integer)
returns setof timestamptz
language plpgsql stable set search_path = '' as $$
declare
  v_from timestamptz := p_after;
  v_window interval := interval '3 hours';
  v_count integer;
begin
  while p_count > 0 and v_from < p_after + interval '50 years' loop
    return query
    select t.at from holdfast.list_cron_times_between(p_cron, p_timezone, v_from, v_from + v_window) as t (at)
      order by t.at limit p_count;
    get diagnostics v_count = row_count;
    p_count := p_count - v_count;
    v_from := v_from + v_window;
    v_window := case when v_count = 0 then v_window * 8 else v_window end;
  end loop;
end $$;

-- List the last p_count times of a cron expression after p_after and up to p_until, newest first.
create or replace function holdfast.list_cron_times_before(p_cron text, p_timezone text, p_until timestamptz,
  p_after timestamptz, p_count integer)
returns setof timestamptz
language plpgsql stable set search_path = '' as $$
declare
  v_to timestamptz := p_until;
  v_window interval := interval '3 hours';
  v_count integer;
begin
  while p_count > 0 and v_to > p_after loop
    return query
    select t.at from holdfast.list_cron_times_between(p_cron, p_timezone, greatest(v_to - v_window, p_after),
      v_to) as t (at)
    order by t.at desc limit p_count;
    get diagnostics v_count = row_count;
    p_count := p_count - v_count;
    v_to := v_to - v_window;
    v_window := case when v_count = 0 then v_window * 8 else v_window end;
  end loop;
end $$;

-- List the first p_count times of a cron expression or an interval after a time. An interval is counted from its
-- anchor, so that it does not drift.
create or replace function holdfast.list_schedule_times_after(
  p_cron text, p_every_s double precision, p_timezone text, p_anchor timestamptz, p_after timestamptz, p_count integer)
returns setof timestamptz
language plpgsql stable set search_path = '' as $$
declare
  v_first bigint := greatest(floor(extract(epoch from p_after - p_anchor)::numeric / p_every_s::numeric)::bigint + 1,
    0);
begin
  if p_cron is not null then
    return query select * from holdfast.list_cron_times_after(p_cron, p_timezone, p_after, p_count);
  else
    return query select p_anchor + n * p_every_s * interval '1 second'
      from generate_series(v_first, v_first + p_count - 1) as n;
  end if;
end $$;

-- List the last p_count times of a cron expression or an interval after p_after and up to p_until, newest first.
create or replace function holdfast.list_schedule_times_before(
  p_cron text, p_every_s double precision, p_timezone text, p_anchor timestamptz, p_until timestamptz,
    p_after timestamptz, p_count integer)
returns setof timestamptz
language plpgsql stable set search_path = '' as $$
declare
  v_last bigint := floor(extract(epoch from p_until - p_anchor)::numeric / p_every_s::numeric)::bigint;
begin
  if p_cron is not null then
    return query select * from holdfast.list_cron_times_before(p_cron, p_timezone, p_until, p_after, p_count);
  else
    return query select t.at from (
      select p_anchor + n * p_every_s * interval '1 second' as at
      from generate_series(v_last, greatest(v_last - p_count + 1, 0), -1) as n) as t
    where t.at > p_after order by t.at desc;
  end if;
end $$;

-- List the next times of a cron expression or an interval that is not stored as a schedule.
create or replace function holdfast.list_next_run_times(
  p_cron text default null, p_every_s double precision default null, p_timezone text default 'UTC',
    p_count integer default 10,
  p_after timestamptz default null)
returns setof timestamptz
language plpgsql stable security definer set search_path = '' as $$
declare
  v_after timestamptz := coalesce(p_after, holdfast.now());
begin
  perform holdfast.validate_schedule_timing(p_cron, p_every_s, p_count);
  return query select * from holdfast.list_schedule_times_after(p_cron, p_every_s, holdfast.check_timezone(p_timezone),
    v_after,
    v_after, p_count);
end $$;

-- Raise HF004 unless there is either a valid cron expression or a valid interval.
create or replace function holdfast.validate_schedule_timing(p_cron text, p_every_s double precision, p_count integer)
  returns void
language plpgsql stable set search_path = '' as $$
begin
  if (p_cron is null) = (p_every_s is null) then
    perform holdfast.raise_error('HF004', 'A schedule needs either a cron expression or an interval.', 'cron');
  end if;
  if p_every_s = 'NaN' or p_every_s < 1 or p_every_s > 315360000 then
    perform holdfast.raise_error('HF004', format('An interval must be from 1 second to 10 years, got %s seconds.',
      p_every_s), 'every_s');
  end if;
  if p_count is null or p_count not between 1 and 1000 then
    perform holdfast.raise_error('HF004', format('count must be from 1 to 1000, got %s.',
      coalesce(p_count::text, 'nothing')), 'count');
  end if;
  if p_cron is not null then
    perform holdfast.parse_cron_expression(p_cron);
    if not exists (select from holdfast.list_cron_times_after(p_cron, 'UTC', holdfast.now(), 1)) then
      perform holdfast.raise_error('HF004', format('The cron expression %s matches no day.',
        quote_literal(left(p_cron, 60))), 'cron');
    end if;
  end if;
end $$;

call holdfast.grant_execute('holdfast_worker', 'list_next_run_times');
call holdfast.grant_execute('service_role', 'list_next_run_times');
