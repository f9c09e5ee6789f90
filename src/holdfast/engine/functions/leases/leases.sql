-- Leases: the main call of a worker, heartbeats, and the check of a lease in a transaction of the user.
--
-- A lease is (attempt, nonce). Every write of a worker names both and changes a row only if both match and the task
-- is running. The nonce stays in the row after the outcome is recorded: an outcome that is sent twice, because the
-- response was lost, gets the same response. Whatever takes a lease away (reclaim, cancel) clears the nonce.
--
-- Lock order, everywhere: single tasks by id, then jobs by id, then tasks of jobs, then limit counters by id, then
-- batches, then idempotency keys, then files, then usage. Code that cannot follow this order skips locked rows.

-- One round trip of a worker: record the outcomes of finished tasks and claim tasks for its free slots. The header of
-- a task is {owner, trace} or null. The last row has only a header: nonce, lanes {id: [queue, type, lease_s,
-- timeout_s, attempts]}, cursors (opaque: send them with the next call), answers (ok or stale, in the order of the
-- outcomes; null when all are ok), next_s and command. The leases of this claim get the nonce p_nonce, a random number
-- that the worker uses once, or a random nonce if it is null. A worker that chooses the nonce can release the tasks of
-- a response that it never received.
create or replace function holdfast.finish_and_claim(
  p_worker text,
  p_ids uuid[] default '{}', p_attempts integer[] default '{}', p_nonces bigint[] default '{}',
  p_outcomes text[] default '{}', p_bodies jsonb[] default '{}',
  p_slots integer default 0, p_queues text[] default '{}', p_types text[] default null, p_cursors jsonb default '{}',
  p_nonce bigint default null)
returns table (id uuid, job_id uuid, lane_id bigint, name text, attempt integer, suspect boolean, args jsonb,
  parents jsonb, header jsonb)
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_worker bigint := holdfast.find_or_create_worker(p_worker, case when p_slots > 0
    then p_queues end, p_types, null, v_now);
  v_answers text[];
  v_command text;
  v_sleeping boolean;
  v_may_wake_others boolean;
begin
  if cardinality(p_ids) > 0 then
    v_answers := holdfast.finish_tasks(p_ids, p_attempts, p_nonces, p_outcomes, p_bodies, v_now);
  end if;
  if p_slots > 0 then
    perform holdfast.sweep_due_tasks(v_now);
  end if;
  for id, job_id, lane_id, name, attempt, suspect, args, parents, header in
    select * from holdfast.claim_ready_tasks(v_worker, p_slots, p_queues, p_types, coalesce(p_cursors, '{}'), v_now,
      p_nonce)
  loop
    if id is null then
      select w.command, w.sleeping, w.woken_at is not null
          or exists (select from holdfast.workers s where s.sleeping and s.queues && p_queues)
        into v_command, v_sleeping, v_may_wake_others from holdfast.workers w where w.id = v_worker;
      header := header || jsonb_build_object('answers', v_answers, 'command', v_command);
      if p_slots > 0 and v_sleeping is distinct from (header -> 'got' = '0') then
        perform holdfast.find_or_create_worker(p_worker, p_queues, p_types, header -> 'got' = '0', v_now);
      end if;
      if p_slots > 0 and v_may_wake_others and (header ->> 'got')::integer >= p_slots then
        perform holdfast.wake_next_workers(v_worker, p_queues);
      end if;
      if p_slots > 0 and header -> 'got' = '0' and not header ? 'next_s' then
        header := header || jsonb_build_object('next_s', holdfast.get_seconds_until_next_due(p_queues, p_types, v_now));
      end if;
    end if;
    return next;
  end loop;
end $$;

-- Release the tasks of claims whose responses never reached the worker, found by the nonces that the worker chose for
-- the claims. Nothing is charged, because no task was started. Returns the nonces of the claims that held tasks. A
-- claim whose nonce is missing in the result held nothing, or its statement is still running: the worker calls this
-- function again later.
create or replace function holdfast.release_unreceived_tasks(p_worker text, p_claim_nonces bigint[]) returns bigint[]
language plpgsql security definer set search_path = '' as $$
declare
  v_ids uuid[];
  v_attempts integer[];
  v_nonces bigint[];
begin
  select array_agg(t.id order by t.id), array_agg(t.attempt order by t.id), array_agg(t.nonce order by t.id)
    into v_ids, v_attempts, v_nonces
  from holdfast.workers w join holdfast.tasks t on t.worker_id = w.id
  where w.name = p_worker and t.status = 'running' and t.nonce = any (p_claim_nonces);
  if v_ids is null then
    return '{}';
  end if;
  perform holdfast.finish_tasks(v_ids, v_attempts, v_nonces, array_fill('release'::text, array[cardinality(v_ids)]),
    array_fill(null::jsonb, array[cardinality(v_ids)]), holdfast.now());
  return array(select distinct n from unnest(v_nonces) as n);
end $$;

-- Extend every lease of a worker in one statement and save its progress. The response names only problems: {lost:
-- [leases], cancelled: [leases]}, where a lease is {id, attempt, nonce}. The request may contain several leases of one
-- task, because the worker may still hold an old one. A lease never outlives the time limit of the attempt.
create or replace function holdfast.heartbeat_tasks(
  p_worker text, p_ids uuid[], p_attempts integer[], p_nonces bigint[], p_progress jsonb default null)
returns jsonb
language plpgsql security definer set search_path = '' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_hashjoin = off
set enable_mergejoin = off as $$
declare
  v_now timestamptz := holdfast.now();
  v_held uuid[];
  v_lost jsonb;
begin
  perform holdfast.find_or_create_worker(p_worker, null, null, null, v_now);
  -- A locked row is being finished, reclaimed, or locked by a transaction of its own worker. It is not lost yet, and
  -- waiting for it would let the other leases expire.
  with input as materialized (
    select * from unnest(p_ids, p_attempts, p_nonces) as u (id, attempt, nonce) order by u.id
  ), locked as materialized (
    select t.id, least(v_now + k.lease_s * interval '1 second',
      t.started_at + (k.timeout_s + holdfast.get_lease_grace_s()) * interval '1 second') as lease_until
    from input g, holdfast.tasks t, holdfast.lanes l, holdfast.task_policies k
    where t.id = g.id and t.attempt = g.attempt and t.nonce = g.nonce and t.status || '' = 'running'
      and l.id = t.lane_id and k.id = l.policy_id
    for no key update of t skip locked
  )
  update holdfast.tasks t set lease_until = m.lease_until from locked m where t.id = m.id;
  select coalesce(array_agg(g.id) filter (where t.id is not null), '{}'),
    jsonb_agg(jsonb_build_object('id', g.id, 'attempt', g.attempt, 'nonce', g.nonce)) filter (where t.id is null)
    into v_held, v_lost
  from unnest(p_ids, p_attempts, p_nonces) as g (id, attempt, nonce)
  left join holdfast.tasks t on t.id = g.id and t.attempt = g.attempt and t.nonce = g.nonce
    and t.status || '' = 'running';
  if p_progress is not null and p_progress <> '{}' then
    perform holdfast.save_progress_of_tasks(p_progress, v_held);
  end if;
  if v_lost is null then
    return '{}';
  end if;
  return jsonb_build_object('lost', v_lost, 'cancelled', (
    select coalesce(jsonb_agg(g.lease), '[]') from jsonb_array_elements(v_lost) as g (lease)
    where exists (select from holdfast.all_tasks t where t.id = (g.lease ->> 'id')::uuid
      and t.attempt = (g.lease ->> 'attempt')::integer and t.status = 'cancelled')));
end $$;

-- Lock a lease until the commit of the caller's transaction, or raise HF001 if the lease is stale.
create or replace function holdfast.assert_lease(p_id uuid, p_attempt integer, p_nonce bigint) returns void
language plpgsql security definer set search_path = '' as $$
begin
  perform from holdfast.tasks t
  where t.id = p_id and t.attempt = p_attempt and t.nonce = p_nonce and t.status || '' = 'running'
  for update;
  if not found then
    perform holdfast.raise_error('HF001', format('The lease of task %s has ended or is held by another worker.', p_id),
      null,
      'Stop working on the task; its outcome is not recorded.');
  end if;
end $$;

-- Return how many seconds a lease may outlast the time limit of its attempt, so that the worker reports the timeout
-- itself. Not pinned to a search_path, so that it is inlined as a constant.
create or replace function holdfast.get_lease_grace_s() returns double precision
language sql immutable parallel safe as $$ select 5::pg_catalog.float8 $$;

call holdfast.grant_execute('holdfast_worker', 'finish_and_claim', 'heartbeat_tasks', 'assert_lease',
  'release_unreceived_tasks');
call holdfast.grant_execute('service_role', 'finish_and_claim', 'heartbeat_tasks', 'assert_lease',
  'release_unreceived_tasks');
