-- Lanes: find or create the lane of a task. lane_cleanup.sql removes lanes that stay empty.

-- Returns the id of the lane of a task; creates the lane and its task policy if they do not exist. Only this function
-- creates them. No transaction waits for another: two transactions that create the same lane at the same time create
-- two, and from then on everybody finds the older one. In a queue with fair_owners each owner has lanes of its own.
create or replace function holdfast.find_or_create_lane(
  p_queue text, p_type text, p_priority smallint, p_limit_key text, p_policy jsonb, p_owner text) returns bigint
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan as $$
declare
  v_lane bigint;
  v_fair_owner text;
begin
  if p_owner is not null and exists (select from holdfast.queues q where q.name = p_queue and q.fair_owners) then
    v_fair_owner := p_owner;
  end if;
  select l.id into v_lane from holdfast.task_policies k
  join holdfast.lanes l on l.policy_id = k.id and l.priority = p_priority and l.closed_at is null
    and not l.returned
    and coalesce(l.limit_key, '') = coalesce(p_limit_key, '') and l.limit_key is not distinct from p_limit_key
    and coalesce(l.fair_owner, '') = coalesce(v_fair_owner, '') and l.fair_owner is not distinct from v_fair_owner
  where k.queue = p_queue and k.type = p_type and k.policy = p_policy
  order by l.id limit 1;
  if v_lane is null then
    if octet_length(p_limit_key) > 1000 then
      perform holdfast.raise_error('HF004', 'limit_key must be at most 1000 bytes long.', 'limit_key');
    end if;
    insert into holdfast.lanes (policy_id, queue, type, priority, limit_key, fair_owner, created_at)
    values (holdfast.find_or_create_task_policy(p_queue, p_type, p_policy), p_queue, p_type, p_priority, p_limit_key,
      v_fair_owner, holdfast.now())
    returning id into v_lane;
  elsif current_setting('transaction_isolation') <> 'read committed' then
    -- An old snapshot may show a deleted lane. The lock fails then, and the caller retries.
    perform from holdfast.lanes l where l.id = v_lane for key share;
  end if;
  return v_lane;
end $$;

-- Return the lane for the returned tasks of a lane (p_returned), or the lane that tasks of that lane were submitted to.
-- Creates the lane if it does not exist. The two lanes differ only in their place in the order of claims.
create or replace function holdfast.find_or_create_sibling_lane(p_lane_id bigint, p_returned boolean) returns bigint
language plpgsql set search_path = '' as $$
declare
  v_lane holdfast.lanes;
  v_sibling_id bigint;
begin
  select * into strict v_lane from holdfast.lanes l where l.id = p_lane_id;
  if v_lane.returned = p_returned then
    return p_lane_id;
  end if;
  select l.id into v_sibling_id from holdfast.lanes l
  where l.policy_id = v_lane.policy_id and l.priority = v_lane.priority and l.returned = p_returned
    and l.closed_at is null and l.limit_key is not distinct from v_lane.limit_key
    and l.fair_owner is not distinct from v_lane.fair_owner
  order by l.id limit 1;
  if v_sibling_id is null then
    insert into holdfast.lanes (policy_id, queue, type, priority, returned, limit_key, fair_owner, created_at)
    values (v_lane.policy_id, v_lane.queue, v_lane.type, v_lane.priority, p_returned, v_lane.limit_key,
      v_lane.fair_owner, holdfast.now())
    returning id into v_sibling_id;
  elsif current_setting('transaction_isolation') <> 'read committed' then
    perform from holdfast.lanes l where l.id = v_sibling_id for key share; -- as in find_or_create_lane
  end if;
  return v_sibling_id;
end $$;

-- Return the id of the task policy for a queue, a task type and a retry policy.
create or replace function holdfast.find_or_create_task_policy(p_queue text, p_type text, p_policy jsonb) returns bigint
language plpgsql set search_path = '' as $$
declare
  v_policy_id bigint;
begin
  perform holdfast.check_name(p_queue, 'queue'), holdfast.check_name(p_type, 'type');
  -- Locked, so that it is not removed before the lane refers to it (remove_unused_task_policies).
  select k.id into v_policy_id from holdfast.task_policies k where k.queue = p_queue and k.type = p_type
    and k.policy = p_policy order by k.id limit 1 for key share;
  if v_policy_id is null then
    insert into holdfast.task_policies (queue, type, policy, max_attempts, backoff_base_s, backoff_cap_s, jitter,
      timeout_s, lease_s,
      max_crashes)
    values (p_queue, p_type, p_policy,
      coalesce(holdfast.parse_number_field(p_policy, 'attempts', 1, 1000000), 5)::int,
      coalesce(holdfast.parse_number_field(p_policy, 'base_s', 0, 31536000), 5),
      coalesce(holdfast.parse_number_field(p_policy, 'cap_s', 0, 31536000), 900),
      coalesce(holdfast.parse_number_field(p_policy, 'jitter', 0, 1), 0.2),
      coalesce(holdfast.parse_number_field(p_policy, 'timeout_s', 0.001, 31536000), 600),
      coalesce(holdfast.parse_number_field(p_policy, 'lease_s', 0.5, 86400), 60),
      coalesce(holdfast.parse_number_field(p_policy, 'crashes', 1, 1000), 3)::int)
    returning id into v_policy_id;
  end if;
  return v_policy_id;
end $$;

-- Return the lane of a task that was in the history, from its task policy.
create or replace function holdfast.find_or_create_lane_for_policy(p_policy_id bigint, p_priority smallint,
  p_limit_key text, p_owner text) returns bigint
language plpgsql set search_path = '' as $$
declare
  v_policy holdfast.task_policies;
begin
  select * into strict v_policy from holdfast.task_policies k where k.id = p_policy_id;
  return holdfast.find_or_create_lane(v_policy.queue, v_policy.type, p_priority, p_limit_key, v_policy.policy, p_owner);
end $$;

-- Move the stored cursor of a lane forward, unless another transaction has locked the lane.
create or replace function holdfast.store_lane_cursor(p_lane bigint, p_safe bigint) returns void
language plpgsql volatile set search_path = '' as $$
begin
  with free as materialized (
    select l.id from holdfast.lanes l where l.id = p_lane and l.cursor < p_safe for update skip locked)
  update holdfast.lanes l set cursor = p_safe from free where l.id = free.id;
end $$;

-- Lower stored cursors that are too high, and return their number. Stored cursors are exact as long as positions only
-- rise. After a failover to a standby that lagged behind, positions may have gone back.
create or replace function holdfast.lower_wrong_lane_cursors() returns integer
language plpgsql set search_path = '' set jit = off set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  v_count integer;
begin
  with wrong as materialized (
    select l.id, t.pos from holdfast.lanes l
    cross join lateral (
      select t.pos from holdfast.tasks t where t.lane_id = l.id and t.status = 'ready' and t.pos < l.cursor
        order by t.pos limit 1) as t
    where l.cursor > 0
    for update of l skip locked
  )
  update holdfast.lanes l set cursor = w.pos from wrong w where l.id = w.id;
  get diagnostics v_count = row_count;
  delete from holdfast.lane_cursors h where h.ctid = any (array(
    select o.ctid from holdfast.lane_cursors o
    where exists (select from holdfast.tasks t where t.lane_id = o.lane_id and t.status = 'ready' and t.pos < o.cursor)
    for update skip locked));
  return v_count;
end $$;
