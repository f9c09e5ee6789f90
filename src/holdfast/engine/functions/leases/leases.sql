-- Leases: the hot-path call of our worker, heartbeats, and the fence.
--
-- A lease is (attempt, nonce). Every write of a worker names both and changes a row only where both match and the
-- task runs. A nonce stays in the row after the outcome was recorded, so that the same outcome sent twice, because the
-- answer was lost, is answered alike; whoever takes a lease away (reclaim, cancel) clears the nonce.
--
-- Lock order, everywhere: single tasks by id, then jobs by id, then tasks of jobs, then limits by id, then
-- batches, then keys, then files, then usage. What cannot follow it skips what is locked.

-- The row of a worker, made on first sight. A name is a label: nothing is decided by this table but whom to wake.
create or replace function holdfast.worker_for(
  p_name text, p_queues text[], p_types text[], p_sleeping boolean, p_now timestamptz) returns bigint
language plpgsql set search_path = '' as $$
declare
  v_worker holdfast.workers;
begin
  select * into v_worker from holdfast.workers where name = p_name;
  if not found then
    insert into holdfast.workers (name, queues, types, sleeping, started_at, seen_at)
    values (holdfast.check_name(p_name, 'worker'), coalesce(p_queues, '{}'), p_types, coalesce(p_sleeping, false), p_now, p_now)
    on conflict (name) do update set seen_at = excluded.seen_at
    returning * into v_worker;
  elsif v_worker.seen_at < p_now - interval '10 seconds' or v_worker.sleeping <> coalesce(p_sleeping, v_worker.sleeping)
    or v_worker.queues is distinct from coalesce(p_queues, v_worker.queues)
    or (p_queues is not null and (v_worker.types is distinct from p_types or v_worker.left_at is not null)) then
    update holdfast.workers set seen_at = p_now, sleeping = coalesce(p_sleeping, sleeping),
      left_at = case when p_queues is null then left_at end, lost = lost and p_queues is null,
      queues = coalesce(p_queues, queues), types = case when p_queues is null then types else p_types end
    where id = (select w.id from holdfast.workers w where w.id = v_worker.id for update skip locked);
  end if;
  return v_worker.id;
end $$;

-- One round trip of a worker: the outcomes of what it finished, and the next batch for its free slots.
-- A task's own header is {owner, trace}, or null. The last row has only `header`: nonce, lanes {id: [queue, type, lease_s, timeout_s, attempts]}, cursors (opaque; send
-- them back next time), answers (ok or stale, in the order of the outcomes; null when all are ok), next_s, command.
create or replace function holdfast.exchange(
  p_worker text,
  p_ids uuid[] default '{}', p_attempts integer[] default '{}', p_nonces bigint[] default '{}',
  p_kinds text[] default '{}', p_bodies jsonb[] default '{}',
  p_slots integer default 0, p_queues text[] default '{}', p_types text[] default null, p_cursors jsonb default '{}')
returns table (id uuid, job_id uuid, lane_id bigint, name text, attempt integer, crashes integer, args jsonb, parents jsonb, header jsonb)
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_worker bigint := holdfast.worker_for(p_worker, case when p_slots > 0 then p_queues end, p_types, null, v_now);
  v_answers text[];
  v_command text;
  v_sleeping boolean;
begin
  if cardinality(p_ids) > 0 then
    v_answers := holdfast.finish(p_ids, p_attempts, p_nonces, p_kinds, p_bodies, v_now);
  end if;
  if p_slots > 0 then
    perform holdfast.sweep_due(v_now);
  end if;
  for id, job_id, lane_id, name, attempt, crashes, args, parents, header in
    select * from holdfast.claim(v_worker, p_slots, p_queues, p_types, coalesce(p_cursors, '{}'), v_now)
  loop
    if id is null then
      select w.command, w.sleeping into v_command, v_sleeping from holdfast.workers w where w.id = v_worker;
      header := header || jsonb_build_object('answers', v_answers, 'command', v_command);
      if p_slots > 0 and v_sleeping is distinct from (header -> 'got' = '0') then
        perform holdfast.worker_for(p_worker, p_queues, p_types, header -> 'got' = '0', v_now);
      end if;
      if p_slots > 0 and header -> 'got' = '0' and not header ? 'next_s' then
        header := header || jsonb_build_object('next_s', holdfast.next_event_s(p_queues, p_types, v_now));
      end if;
    end if;
    return next;
  end loop;
end $$;

-- What a worker was given in an answer that never reached it: leases in its name, granted within p_within_s, of which it knows nothing.
-- They go back, and nobody is charged, as nothing was begun. The worker asks for this before its next claim, when the answer to one was
-- lost. Older ones stay: a thread that cannot be stopped may still be at work.
create or replace function holdfast.release_unheld(p_worker text, p_held uuid[], p_within_s double precision) returns integer
language plpgsql security definer set search_path = '' as $$
declare
  v_ids uuid[];
  v_attempts integer[];
  v_nonces bigint[];
begin
  select array_agg(t.id order by t.id), array_agg(t.attempt order by t.id), array_agg(t.nonce order by t.id) into v_ids, v_attempts, v_nonces
  from holdfast.workers w join holdfast.tasks t on t.worker_id = w.id
  where w.name = p_worker and t.status = 'running' and t.id <> all (p_held)
    and t.started_at > holdfast.now() - p_within_s * interval '1 second';
  if v_ids is null then
    return 0;
  end if;
  perform holdfast.finish(v_ids, v_attempts, v_nonces, array_fill('release'::text, array[cardinality(v_ids)]),
    array_fill(null::jsonb, array[cardinality(v_ids)]), holdfast.now());
  return cardinality(v_ids);
end $$;

-- Extends every lease of a worker in one statement, and keeps its progress. Answers only for what is wrong:
-- {lost: [ids], cancelled: [ids]}. A lease never outlives the attempt's time limit.
create or replace function holdfast.beat(
  p_worker text, p_ids uuid[], p_attempts integer[], p_nonces bigint[], p_progress jsonb default null)
returns jsonb
language plpgsql security definer set search_path = '' set plan_cache_mode = force_generic_plan set jit = off set enable_seqscan = off set enable_hashjoin = off
set enable_mergejoin = off as $$
declare
  v_now timestamptz := holdfast.now();
  v_held uuid[];
begin
  perform holdfast.worker_for(p_worker, null, null, null, v_now);
  -- A row that is locked is being finished, taken away, or held by its own worker's transaction: not lost yet, and
  -- waiting for it would let the other leases run out.
  with given as materialized (
    select * from unnest(p_ids, p_attempts, p_nonces) as u (id, attempt, nonce) order by u.id
  ), mine as materialized (
    select t.id, least(v_now + k.lease_s * interval '1 second',
      t.started_at + (k.timeout_s + 5) * interval '1 second') as lease_until
    from given g, holdfast.tasks t, holdfast.lanes l, holdfast.kinds k
    where t.id = g.id and t.attempt = g.attempt and t.nonce = g.nonce and t.status || '' = 'running'
      and l.id = t.lane_id and k.id = l.kind_id
    for no key update of t skip locked
  )
  update holdfast.tasks t set lease_until = m.lease_until from mine m where t.id = m.id;
  select coalesce(array_agg(t.id), '{}') into v_held
  from unnest(p_ids, p_attempts, p_nonces) as g (id, attempt, nonce)
  join holdfast.tasks t on t.id = g.id and t.attempt = g.attempt and t.nonce = g.nonce and t.status || '' = 'running';
  if p_progress is not null and p_progress <> '{}' then
    perform holdfast.keep_progress(p_progress, v_held, v_now);
  end if;
  return jsonb_build_object(
    'lost', coalesce((select jsonb_agg(i) from unnest(p_ids) as i where i <> all (v_held)), '[]'),
    'cancelled', coalesce((select jsonb_agg(i) from unnest(p_ids) as i
      where i <> all (v_held) and holdfast.task_status(i) = 'cancelled'), '[]'));
end $$;

-- For a transaction of the user's own: succeeds only while the lease is held, and holds it until the commit.
create or replace function holdfast.assert_lease(p_id uuid, p_attempt integer, p_nonce bigint) returns void
language plpgsql security definer set search_path = '' as $$
begin
  perform from holdfast.tasks t
  where t.id = p_id and t.attempt = p_attempt and t.nonce = p_nonce and t.status || '' = 'running'
  for update;
  if not found then
    perform holdfast.refuse('HF001', format('The lease of task %s has passed to someone else.', p_id), null,
      'Stop working on it; its result is not wanted any more.');
  end if;
end $$;

call holdfast.allow('holdfast_worker', 'exchange', 'beat', 'assert_lease', 'release_unheld');
call holdfast.allow('service_role', 'exchange', 'beat', 'assert_lease', 'release_unheld');
