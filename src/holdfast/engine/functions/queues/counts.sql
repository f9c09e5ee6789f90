-- Counts of tasks at any scale: exact up to a limit, and estimates of the right size above it.
--
-- Ready tasks are estimated from the index of their lane: positions rise in the order in which tasks become ready, so
-- the density of positions in sixteen parts of the lane tells how many there are. Everything else is estimated from a
-- sample of the pages of a table. Both need no statistics, which are missing just after a large submit, and both
-- return the same number again until the rows change, so that a page that is updated does not flicker.

-- Estimate the ready tasks of a lane from its cursor on. Reads at most sixteen times p_rows rows; a lane with fewer
-- than p_rows in each part is counted exactly.
create or replace function holdfast.estimate_ready_tasks(p_lane_id bigint, p_cursor bigint, p_rows integer)
  returns bigint
language plpgsql stable set search_path = '' set jit = off as $$
declare
  v_parts constant integer := 16;
  v_first bigint := (select t.pos from holdfast.tasks t where t.lane_id = p_lane_id and t.status = 'ready'
    and t.pos >= p_cursor order by t.pos limit 1);
  v_last bigint := (select t.pos from holdfast.tasks t where t.lane_id = p_lane_id and t.status = 'ready'
    and t.pos >= p_cursor order by t.pos desc limit 1);
  v_from bigint := v_first;
  v_until bigint;
  v_read bigint;
  v_end bigint;
  v_total numeric := 0;
begin
  for i in 1 .. v_parts loop
    exit when v_from > v_last or v_first is null;
    v_until := v_first + ((v_last - v_first + 1) * i) / v_parts;
    continue when v_until <= v_from;
    select count(*), max(t.pos) + 1 into v_read, v_end from (
      select t.pos from holdfast.tasks t where t.lane_id = p_lane_id and t.status = 'ready' and t.pos >= v_from
        and t.pos < v_until order by t.pos limit p_rows) as t;
    v_total := v_total + case when v_read < p_rows then v_read
      else v_read * (v_until - v_from)::numeric / (v_end - v_from) end;
    v_from := v_until;
  end loop;
  return round(v_total);
end $$;

-- Count the ready tasks of a queue, or of one task type in it: exactly up to p_max_rows, otherwise as an estimate. Of
-- more than 1,000 lanes, every n-th is estimated.
create or replace function holdfast.count_ready_tasks(p_queue text, p_type text, p_max_rows integer,
  out ready bigint, out exact boolean)
language plpgsql stable set search_path = '' set jit = off as $$
declare
  v_max_lanes constant integer := 1000;
  v_lanes bigint;
begin
  select count(*) into ready from (
    select from holdfast.lanes l
    cross join lateral (
      select from holdfast.tasks t where t.lane_id = l.id and t.status = 'ready' and t.pos >= l.cursor
      order by t.pos limit p_max_rows + 1) as t
    where l.queue = p_queue and (p_type is null or l.type = p_type) limit p_max_rows + 1) as t;
  exact := ready <= p_max_rows;
  if exact then
    return;
  end if;
  select count(*) into v_lanes from holdfast.lanes l where l.queue = p_queue and (p_type is null or l.type = p_type);
  select greatest(ready, coalesce(sum(holdfast.estimate_ready_tasks(l.id, l.cursor,
      greatest(p_max_rows / 16 / least(v_lanes, v_max_lanes), 4)::integer)), 0)
      * v_lanes / greatest(count(*), 1))::bigint into ready
  from (
    select l.id, l.cursor, row_number() over (order by l.id) as n from holdfast.lanes l
    where l.queue = p_queue and (p_type is null or l.type = p_type)) as l
  where l.n % ceil(v_lanes::numeric / v_max_lanes)::bigint = 0;
end $$;

-- Return the percentage of a table that about p_pages pages are.
create or replace function holdfast.compute_sample_percent(p_pages integer, variadic p_tables regclass[])
  returns double precision
language plpgsql stable set search_path = '' as $$
declare
  v_pages double precision := (
    select sum(pg_relation_size(c.oid)) / current_setting('block_size')::integer from pg_class c
    where c.oid = any (p_tables) or c.oid in (select i.inhrelid from pg_inherits i where i.inhparent = any (p_tables)));
begin
  return least(100, 100 * p_pages / greatest(v_pages, 1));
end $$;

-- Estimate the numbers of unfinished tasks by queue and status from a sample of pages.
create or replace function holdfast.estimate_live_tasks()
  returns table (queue text, status text, retrying boolean, tasks bigint)
language plpgsql stable set search_path = '' set jit = off as $$
declare
  v_sampled_pages constant integer := 300;
  v_percent double precision := holdfast.compute_sample_percent(v_sampled_pages, 'holdfast.tasks');
begin
  return query select l.queue, t.status, t.failures + t.crashes > 0, round(count(*) * 100 / v_percent)::bigint
  from holdfast.tasks t tablesample system (v_percent) repeatable (1)
  join holdfast.lanes l on l.id = t.lane_id
  where t.status in ('waiting', 'scheduled', 'ready', 'running') group by 1, 2, 3;
end $$;

-- Count the running and the scheduled tasks of each queue: exactly up to p_max_rows in all queues together, otherwise
-- as estimates.
create or replace function holdfast.count_busy_tasks(p_max_rows integer)
  returns table (queue text, running bigint, running_exact boolean, scheduled bigint, scheduled_exact boolean)
language plpgsql stable set search_path = '' set jit = off as $$
#variable_conflict use_column
declare
  v_running bigint;
  v_scheduled bigint;
begin
  select count(*) into v_running from (
    select from holdfast.tasks t where t.status = 'running' limit p_max_rows + 1) as t;
  select count(*) into v_scheduled from (
    select from holdfast.tasks t where t.status = 'scheduled' limit p_max_rows + 1) as t;
  return query
  with counted as (
    select t.status, t.lane_id from (
      (select t.status, t.lane_id from holdfast.tasks t where t.status = 'running' limit p_max_rows + 1)
      union all
      (select t.status, t.lane_id from holdfast.tasks t where t.status = 'scheduled' limit p_max_rows + 1)) as t
  ), by_queue as (
    select l.queue, c.status, count(*) as n from counted c join holdfast.lanes l on l.id = c.lane_id group by 1, 2
  ), estimated as (
    select e.queue, e.status, sum(e.tasks)::bigint as n from holdfast.estimate_live_tasks() as e
    where v_running > p_max_rows or v_scheduled > p_max_rows group by 1, 2
  ), best as (
    select coalesce(b.queue, e.queue) as queue, coalesce(b.status, e.status) as status,
      case when coalesce(b.status, e.status) = 'running' and v_running > p_max_rows
        or coalesce(b.status, e.status) = 'scheduled' and v_scheduled > p_max_rows
        then greatest(b.n, e.n) else coalesce(b.n, 0) end as n
    from by_queue b full join estimated e on e.queue = b.queue and e.status = b.status
  )
  select b.queue, coalesce(sum(b.n) filter (where b.status = 'running'), 0)::bigint, v_running <= p_max_rows,
    coalesce(sum(b.n) filter (where b.status = 'scheduled'), 0)::bigint, v_scheduled <= p_max_rows
  from best b where b.status in ('running', 'scheduled') group by b.queue;
end $$;
