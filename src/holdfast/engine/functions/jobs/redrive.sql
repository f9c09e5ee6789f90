-- Again: jobs and tasks that ended are put back to work. Attempt numbers go on from where they were, so leases of the
-- past stay stale; failures and crashes count from nought.

create or replace function holdfast.lane_of_kind(p_kind bigint, p_priority smallint, p_limit_key text, p_owner text) returns bigint
language plpgsql set search_path = '' as $$
declare
  v_kind holdfast.kinds;
begin
  select * into strict v_kind from holdfast.kinds k where k.id = p_kind;
  return holdfast.lane_for(v_kind.queue, v_kind.type, p_priority, p_limit_key, v_kind.policy, p_owner);
end $$;

-- Rows of the history back into the hot table, as they ended. The row lock decides between two that try.
create or replace function holdfast.unarchive(p_ids uuid[]) returns uuid[]
language plpgsql set search_path = '' as $$
declare
  v_ids uuid[];
begin
  with gone as (
    delete from holdfast.history h where h.id = any (p_ids) returning h.*
  ), back as (
    insert into holdfast.tasks (id, job_id, lane_id, nonce, worker_id, due_at, started_at, finished_at, attempt, failures, crashes,
      status, args, output, error, name, owner, weight, percent, phase, message, event_seq, labels, batch_id)
    select g.id, g.job_id, holdfast.lane_of_kind(g.kind_id, g.priority, g.limit_key, g.owner), g.nonce, g.worker_id, g.due_at, g.started_at,
      g.finished_at, g.attempt, g.failures, g.crashes, g.status, g.args, g.output, g.error, g.name, g.owner, g.weight, g.percent,
      g.phase, g.message, g.event_seq, g.labels, g.batch_id
    from gone g
    returning id
  )
  select coalesce(array_agg(b.id), '{}') into v_ids from back b;
  return v_ids;
end $$;

create or replace function holdfast.reset_task(p_id uuid, p_due timestamptz, p_waits integer, p_now timestamptz) returns void
language plpgsql set search_path = '' as $$
begin
  update holdfast.tasks t set
    status = case when p_waits > 0 then 'waiting' when p_due > p_now then 'scheduled' else 'ready' end,
    pos = case when coalesce(p_waits, 0) = 0 and p_due <= p_now then nextval('holdfast.positions') end,
    due_at = greatest(p_due, p_now), waits = p_waits, failures = 0, crashes = 0, snoozes = null, nonce = null, lease_until = null,
    finished_at = null, output = null, error = null, percent = null, phase = null, message = null,
    -- What a remembered step saved is to be shown by whoever succeeds.
    files = coalesce(t.files, (select true from holdfast.artifacts f where f.task_id = p_id and f.status = 'staged' and f.step is not null limit 1))
  where t.id = p_id;
  perform holdfast.wake(array(select t.lane_id from holdfast.tasks t where t.id = p_id and t.status = 'ready'));
end $$;

-- Runs an ended job again: what failed or was cancelled, or the named tasks, with all that comes after them.
create or replace function holdfast.retry_job(p_id uuid, p_from text[] default null, p_delay_s double precision default 0)
returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_user text := holdfast.calling_user();
  v_now timestamptz := holdfast.now();
  v_due timestamptz := v_now + least(greatest(coalesce(p_delay_s, 0), 0), 315360000) * interval '1 second';
  v_was record;
  v_count integer := 0;
begin
  if not holdfast.may_see(p_id, v_user) then
    perform holdfast.refuse('HF002', format('There is no job %s.', p_id), 'id');
  end if;
  perform pg_current_xact_id();
  select j.status, j.batch_id, j.finished_at is not null as ended into v_was from holdfast.jobs j where j.id = p_id for update;
  if found then
    v_count := holdfast.retry_graph(p_id, p_from, v_due, v_now);
  else
    perform holdfast.unarchive(array(select h.id from holdfast.history h where h.id = p_id and h.job_id is null));
    select t.status, t.batch_id, true as ended into v_was from holdfast.tasks t
    where t.id = p_id and t.status || '' in ('failed', 'cancelled', 'succeeded') for update;
    if found then
      v_count := 1;
      perform holdfast.reset_task(p_id, v_due, null, v_now);
    end if;
  end if;
  if v_count > 0 and v_was.ended then
    perform holdfast.uncount_member(v_was.batch_id, v_was.status, v_now);
  end if;
  return jsonb_build_object('restarted', v_count, 'status', holdfast.job_status(p_id));
end $$;

-- Every task below the given ones, with themselves.
create or replace function holdfast.with_descendants(p_ids uuid[]) returns uuid[]
language plpgsql stable set search_path = '' as $$
begin
  return array(
    with recursive below as (
      select i as id from unnest(p_ids) as i
      union
      select e.child_id from holdfast.edges e join below b on e.parent_id = b.id
    )
    select b.id from below b);
end $$;

create or replace function holdfast.retry_graph(p_id uuid, p_from text[], p_due timestamptz, p_now timestamptz) returns integer
language plpgsql set search_path = '' as $$
declare
  v_set uuid[];
begin
  perform holdfast.unarchive(array(select h.id from holdfast.history h where h.job_id = p_id));
  v_set := array(select t.id from holdfast.tasks t where t.job_id = p_id
    and case when p_from is null then t.status || '' in ('failed', 'cancelled') else t.name = any (p_from) end);
  if p_from is not null then
    if cardinality(v_set) < cardinality(p_from) then
      perform holdfast.refuse('HF004', 'from names a task that the job does not have.', 'from');
    end if;
    v_set := holdfast.with_descendants(v_set);
  end if;
  if exists (select from holdfast.tasks t where t.id = any (v_set) and t.status || '' in ('waiting', 'scheduled', 'ready', 'running')) then
    perform holdfast.refuse('HF003', 'A task that would run again has not ended yet.', 'id', 'Cancel the job first, or wait for it.');
  end if;
  update holdfast.edges e set satisfied = not (e.parent_id = any (v_set)) and p.status || '' in ('succeeded', 'failed', 'cancelled')
  from holdfast.tasks p where e.child_id = any (v_set) and p.id = e.parent_id;
  perform holdfast.reset_task(i, p_due, (
      select count(*) filter (where not e.satisfied)::int from holdfast.edges e where e.child_id = i having count(*) > 0), p_now)
    from unnest(v_set) as i;
  perform holdfast.recount_job(p_id, p_now);
  return cardinality(v_set);
end $$;

create or replace function holdfast.recount_job(p_id uuid, p_now timestamptz) returns void
language plpgsql set search_path = '' as $$
declare
  v_job holdfast.jobs;
begin
  update holdfast.jobs j set
    total = c.total, succeeded = c.succeeded, failed = c.failed, cancelled = c.cancelled, skipped = c.skipped,
    weight = c.weight, weight_done = c.weight_done, percent = holdfast.percent_of(c.weight_done, c.weight),
    status = case when c.succeeded + c.failed + c.cancelled + c.skipped = c.total then j.status
      when c.succeeded > 0 then 'running' else 'queued' end,
    finished_at = case when c.succeeded + c.failed + c.cancelled + c.skipped = c.total then j.finished_at end,
    keep_until = case when c.succeeded + c.failed + c.cancelled + c.skipped = c.total then j.keep_until end,
    archived = false, error = null, event_seq = j.event_seq + 1
  from (
    select count(*) as total, count(*) filter (where t.status = 'succeeded') as succeeded,
      count(*) filter (where t.status = 'failed') as failed,
      count(*) filter (where t.status = 'cancelled' and t.error ->> 'type' is distinct from 'Skipped') as cancelled,
      count(*) filter (where t.status = 'cancelled' and t.error ->> 'type' = 'Skipped') as skipped,
      sum(coalesce(t.weight, 1)) as weight,
      coalesce(sum(coalesce(t.weight, 1)) filter (where t.finished_at is not null), 0) as weight_done
    from holdfast.tasks t where t.job_id = p_id
  ) as c
  where j.id = p_id
  returning j.* into v_job;
  insert into holdfast.events (job_id, seq, at, keep_until, owner, kind, body)
  values (v_job.id, v_job.event_seq, p_now, p_now + interval '7 days', v_job.owner, 'job',
    jsonb_build_object('status', v_job.status, 'percent', v_job.percent));
end $$;

-- Failed jobs back to work, by filter {ids, owner, queue, type, error_type, fingerprint, since, until, from}, oldest first, spread
-- evenly over p_spread_s. With p_dry_run only counts. Answers {found, restarted}; what is still scheduled can be cancelled. When
-- there is more to look at than one call does (redrive_find.sql) the answer has {more: true, next, until} besides: `from` and `until`
-- of the next call's filter, which then finds nothing twice that was restarted and failed again.
create or replace function holdfast.redrive(
  p_filter jsonb, p_limit integer default 1000, p_dry_run boolean default false, p_spread_s double precision default 0) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_found record;
  v_count integer := 0;
  v_id uuid;
begin
  select * into v_found from holdfast.find_failed(p_filter, least(greatest(coalesce(p_limit, 1000), 1), 100000));
  if not p_dry_run then
    foreach v_id in array v_found.ids loop
      v_count := v_count + sign((holdfast.retry_job(v_id, null,
        coalesce(p_spread_s, 0) * v_count / greatest(cardinality(v_found.ids), 1)) ->> 'restarted')::int);
    end loop;
  end if;
  return jsonb_build_object('found', cardinality(v_found.ids), 'restarted', v_count)
    || case when v_found.next is null then '{}' else jsonb_build_object('more', true, 'next', v_found.next, 'until',
      coalesce(holdfast.time_in(p_filter, 'until'), holdfast.now())) end;
end $$;

call holdfast.allow('holdfast_worker', 'retry_job', 'redrive');
call holdfast.allow('service_role', 'retry_job', 'redrive');
call holdfast.allow('authenticated', 'retry_job');
