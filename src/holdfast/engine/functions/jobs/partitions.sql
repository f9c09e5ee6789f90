-- Partitions: the history, attempts, events and logs have one partition per day on which rows expire, and an expired
-- day is dropped whole.
--
-- `tick` creates the days ahead. Rows without a day of their own (kept very long, or created while no one called
-- tick) are in the default partition and are deleted row by row. Creating and dropping a day needs a short exclusive
-- lock. It gives up after a tenth of a second and the next tick tries again, so work never queues up behind it for
-- longer. A tick that does this handles one table at a time and holds no other lock, so that it cannot be part of a
-- deadlock.

-- Create the partition of one table for one day. False if it exists or cannot be created now.
create or replace function holdfast.create_day_partition(p_table text, p_day date) returns boolean
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
    -- The default partition already holds rows of that day. They stay there and are deleted when they expire.
    return false;
end $$;

-- Create missing partitions of one table: tasks are kept for one or seven days by default, events and log lines for
-- seven, attempts for thirty. Stop at the first partition that cannot be created now.
create or replace function holdfast.create_day_partitions(p_now timestamptz) returns integer
language plpgsql set search_path = '' as $$
declare
  v_day date := (p_now at time zone 'UTC')::date;
  v_row record;
  v_table text;
  v_created integer := 0;
begin
  for v_row in
    select d.name, v_day + d.ahead as day from (
      select 'history' as name, a as ahead from unnest('{0,1,2,3,7,8,9}'::int[]) as a
      union all select 'events', a from unnest('{7,8,9}'::int[]) as a
      union all select 'logs', a from unnest('{7,8,9}'::int[]) as a
      union all select 'attempts', a from unnest('{30,31,32}'::int[]) as a
    ) as d
    where to_regclass(format('holdfast.%I', d.name || to_char(v_day + d.ahead, '_YYYYMMDD'))) is null
    order by d.name, d.ahead
  loop
    exit when v_row.name <> v_table;
    if holdfast.create_day_partition(v_row.name, v_row.day) then
      v_created := v_created + 1;
      v_table := v_row.name;
    end if;
  end loop;
  return v_created;
end $$;

-- Drop the expired days of one table.
create or replace function holdfast.drop_expired_partitions(p_now timestamptz) returns integer
language plpgsql set search_path = '' set lock_timeout = '100ms' as $$
declare
  v_row record;
  v_table oid;
  v_count integer := 0;
begin
  for v_row in
    select c.relname, i.inhparent from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
    where i.inhparent in ('holdfast.history'::regclass, 'holdfast.attempts'::regclass, 'holdfast.events'::regclass,
        'holdfast.logs'::regclass)
      and c.relname ~ '_[0-9]{8}$' and to_date(right(c.relname, 8), 'YYYYMMDD') < (p_now at time zone 'UTC')::date
    order by i.inhparent, right(c.relname, 8)
  loop
    exit when v_row.inhparent <> v_table;
    execute format('drop table if exists holdfast.%I', v_row.relname);
    v_table := v_row.inhparent;
    v_count := v_count + 1;
  end loop;
  return v_count;
exception when lock_not_available or deadlock_detected then
  return 0;
end $$;
