-- Cron expressions: the times that they name, in any time zone, in SQL alone.
--
-- Five fields: minute, hour, day of the month, month, day of the week (0 and 7 are Sunday). Each takes `*`, numbers,
-- ranges `a-b`, steps `*/n`, `a-b/n` and `a/n` (from a to the end), lists with commas, and names (JAN, MON). The day
-- of the month takes `L` (the last) and `LW` (the last from Monday to Friday), the day of the week `n#k` (the k-th of
-- the month) and `nL` (the last of the month). If neither day field starts with `*`, one of them must match;
-- otherwise both must.
--
-- Clock changes. An expression whose minute or hour field starts with `*` follows elapsed time: it matches whenever
-- the wall clock shows a matching time, so twice in an hour that is repeated and never in one that is skipped. All
-- other expressions name times of day: a time that is skipped runs once, at the first moment after the gap, and a
-- time that comes twice runs at the first.

-- Return the numbers of one field of a cron expression, in the range p_min to p_max.
create or replace function holdfast.parse_cron_field(p_text text, p_field text, p_min integer, p_max integer)
  returns integer[]
language plpgsql immutable set search_path = '' as $$
declare
  v_all integer[] := array(select generate_series(p_min, p_max));
  v_term text;
  v_part text[];
  v_numbers integer[];
  v_result integer[] := '{}';
begin
  foreach v_term in array string_to_array(p_text, ',') loop
    if p_field = 'day' and v_term ~ '^LW?(/0*[1-9][0-9]*)?$' then
      v_result := v_result || case when v_term like 'LW%' then 33 else 32 end;
      continue;
    elsif p_field = 'weekday' and v_term ~ '^[0-7]L$' then
      v_result := v_result || 90 + left(v_term, 1)::int % 7;
      continue;
    elsif p_field = 'weekday' and v_term ~ '^[^#]+#0*[1-5]$' then
      v_result := v_result || right(v_term, 1)::int * 10 + holdfast.parse_cron_number(split_part(v_term, '#', 1),
        p_field, 0, 7) % 7;
      continue;
    end if;
    v_part := regexp_match(v_term, '^(\*|[0-9A-Z]+)(?:-([0-9A-Z]+))?(?:/0*([1-9][0-9]{0,5}))?$');
    if v_part is null or (v_part[1] = '*' and v_part[2] is not null) then
      perform holdfast.raise_cron_error(p_text, p_field, p_min, p_max);
    end if;
    if v_part[1] = '*' then
      v_numbers := v_all;
    else
      v_numbers := array(select generate_series(holdfast.parse_cron_number(v_part[1], p_field, p_min, p_max),
        holdfast.parse_cron_number(coalesce(v_part[2], v_part[1]), p_field, p_min, p_max)));
      if cardinality(v_numbers) = 1 and v_part[3] is not null then
        v_numbers := array(select generate_series(v_numbers[1], p_max));
      end if;
    end if;
    if cardinality(v_numbers) = 0 then
      perform holdfast.raise_cron_error(p_text, p_field, p_min, p_max);
    end if;
    v_result := v_result || array(
      select case when p_field = 'weekday' then g.n % 7 else g.n end
      from unnest(v_numbers) with ordinality as g (n, ord)
      where (g.ord - 1) % coalesce(v_part[3]::int, 1) = 0);
  end loop;
  return array(select distinct n from unnest(v_result) as n order by n);
end $$;

-- Return a number, or the number of a month or weekday name.
create or replace function holdfast.parse_cron_number(p_text text, p_field text, p_min integer, p_max integer)
  returns integer
language plpgsql immutable set search_path = '' as $$
declare
  v_number integer := case
    when p_text ~ '^[0-9]{1,9}$' then p_text::int
    when p_field = 'month' then array_position('{JAN,FEB,MAR,APR,MAY,JUN,JUL,AUG,SEP,OCT,NOV,DEC}'::text[], p_text)
    when p_field = 'weekday' then array_position('{SUN,MON,TUE,WED,THU,FRI,SAT}'::text[], p_text) - 1 end;
begin
  if v_number is null or v_number not between p_min and p_max then
    perform holdfast.raise_cron_error(p_text, p_field, p_min, p_max);
  end if;
  return v_number;
end $$;

-- Raise HF004 for an invalid field of a cron expression.
create or replace function holdfast.raise_cron_error(p_text text, p_field text, p_min integer, p_max integer)
  returns void
language plpgsql immutable set search_path = '' as $$
begin
  perform holdfast.raise_error('HF004', format('The %s of a cron expression must be from %s to %s, got %s.', p_field,
    p_min, p_max,
    quote_literal(left(p_text, 60))), 'cron', 'Write it as in "30 6 * * MON-FRI": minute, hour, day, month, weekday.');
end $$;

-- Return the fields of a cron expression as numbers. Days 32 and 33 stand for L and LW; weekdays from 10 on for n#k (10
-- * k + n) and nL (90 + n).
create or replace function holdfast.parse_cron_expression(
  p_cron text, out minutes integer[], out hours integer[], out days integer[], out months integer[],
    out weekdays integer[],
  out day_and boolean, out elapsed boolean)
language plpgsql immutable set search_path = '' as $$
declare
  v_text text := case lower(btrim(p_cron)) when '@hourly' then '0 * * * *' when '@daily' then '0 0 * * *'
    when '@midnight' then '0 0 * * *' when '@weekly' then '0 0 * * 0' when '@monthly' then '0 0 1 * *'
    when '@yearly' then '0 0 1 1 *' when '@annually' then '0 0 1 1 *' else upper(btrim(p_cron, E' \t\n')) end;
  v_field text[] := regexp_split_to_array(v_text, '\s+');
begin
  if length(p_cron) > 1000 or cardinality(v_field) is distinct from 5 then
    perform holdfast.raise_error('HF004', format('A cron expression has five fields, got %s.',
      coalesce(quote_literal(left(p_cron, 60)), 'nothing')),
      'cron', 'Write minute, hour, day, month and weekday, as in "0 3 * * *", '
      'or @hourly, @daily, @weekly, @monthly, @yearly.');
  end if;
  minutes := holdfast.parse_cron_field(v_field[1], 'minute', 0, 59);
  hours := holdfast.parse_cron_field(v_field[2], 'hour', 0, 23);
  days := holdfast.parse_cron_field(v_field[3], 'day', 1, 31);
  months := holdfast.parse_cron_field(v_field[4], 'month', 1, 12);
  weekdays := holdfast.parse_cron_field(v_field[5], 'weekday', 0, 7);
  day_and := v_field[3] like '*%' or v_field[5] like '*%';
  elapsed := v_field[1] like '*%' or v_field[2] like '*%';
end $$;

-- List the days that match a cron expression, from one date to another.
create or replace function holdfast.list_cron_days(
  p_days integer[], p_months integer[], p_weekdays integer[], p_day_and boolean, p_from date, p_to date)
    returns setof date
language plpgsql immutable set search_path = '' as $$
begin
  return query
  select f.day from (
    select m.day, m.day_no = any (p_days) or (m.day_no = m.last_no and 32 = any (p_days))
        or (33 = any (p_days) and m.day_no = m.last_no - greatest((m.last_dow + 6) % 7 - 4, 0)) as by_day,
      m.dow = any (p_weekdays) or (m.day_no + 6) / 7 * 10 + m.dow = any (p_weekdays)
        or (m.day_no + 7 > m.last_no and 90 + m.dow = any (p_weekdays)) as by_weekday
    from (
      select d.day, extract(day from d.day)::int as day_no, extract(dow from d.day)::int as dow,
        extract(day from l.last)::int as last_no, extract(dow from l.last)::int as last_dow
      from (select p_from + n as day from generate_series(0, p_to - p_from) as n) as d
      cross join lateral (select (date_trunc('month',
        d.day::timestamp) + interval '1 month - 1 day')::date as last) as l
      where extract(month from d.day)::int = any (p_months)
    ) as m
  ) as f
  where case when p_day_and then f.by_day and f.by_weekday else f.by_day or f.by_weekday end;
end $$;

-- Return the first moment after a gap that a clock change makes. p_late is a time in the skipped hour as PostgreSQL
-- reads it, by the offset from before the change.
create or replace function holdfast.find_first_time_after_clock_gap(p_late timestamptz, p_timezone text)
  returns timestamptz
language plpgsql stable set search_path = '' as $$
declare
  v_offset interval := (p_late at time zone p_timezone) - (p_late at time zone 'UTC');
  v_before timestamptz := p_late - interval '25 hours';
  v_after timestamptz := p_late;
  v_middle timestamptz;
begin
  while v_after - v_before > interval '1 second' loop
    v_middle := date_trunc('second', v_before + (v_after - v_before) / 2, 'UTC');
    if (v_middle at time zone p_timezone) - (v_middle at time zone 'UTC') = v_offset then
      v_after := v_middle;
    else
      v_before := v_middle;
    end if;
  end loop;
  return v_after;
end $$;

-- List every time of a cron expression after p_from and up to p_to, in no order. PostgreSQL reads a wall clock time
-- that comes twice as the second one; the first is earlier by the difference to the offset of the day before.
create or replace function holdfast.list_cron_times_between(p_cron text, p_timezone text, p_from timestamptz,
  p_to timestamptz)
returns setof timestamptz
language plpgsql stable set search_path = '' as $$
declare
  v_cron record := holdfast.parse_cron_expression(p_cron);
  v_low timestamp := p_from at time zone p_timezone;
  v_high timestamp := p_to at time zone p_timezone;
  v_margin interval := case when p_to - p_from > interval '1 day' then interval '26 hours'
    else greatest((v_high - v_low) - (p_to - p_from), (p_to - p_from) - (v_high - v_low)) end;
begin
  return query
  select distinct i.at from (
    select d.day + make_interval(hours => h.n, mins => m.n) as wall
    from holdfast.list_cron_days(v_cron.days, v_cron.months, v_cron.weekdays, v_cron.day_and,
        (v_low - v_margin)::date, (v_high + v_margin)::date) as d (day),
      unnest(v_cron.hours) as h (n), unnest(v_cron.minutes) as m (n)
    where d.day + make_interval(hours => h.n, mins => m.n) between v_low - v_margin and v_high + v_margin
  ) as w
  cross join lateral (select w.wall at time zone p_timezone as late offset 0) as l
  cross join lateral (select (l.late at time zone p_timezone) = w.wall as there,
    l.late - (((l.late - interval '24 hours') at time zone p_timezone)
      - (w.wall - interval '24 hours')) as early offset 0) as e
  cross join lateral (
    select case when e.there then l.late when not v_cron.elapsed then holdfast.find_first_time_after_clock_gap(l.late,
      p_timezone) end as at
    where v_cron.elapsed or not e.there or e.early >= l.late or (e.early at time zone p_timezone) <> w.wall
    union all
    select e.early where e.there and e.early < l.late and (e.early at time zone p_timezone) = w.wall
  ) as i
  where i.at > p_from and i.at <= p_to;
end $$;
