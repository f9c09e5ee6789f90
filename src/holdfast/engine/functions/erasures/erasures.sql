-- Erasing an owner: everything of one user in the engine, in the object store and in the systems.
--
-- A request is a row. advance_erasure deletes a bounded number of rows in one transaction, so that an erasure whose
-- process died goes on where it was: with the next call, or with the maintenance of any worker. First the work of the
-- owner is stopped, then rows of systems and messages go, then files, then jobs. A file's row goes after its object.
-- An erasure is finished when nothing is left and the work that it interrupted cannot write any more.

-- Request the erasure of an owner, and return it as get_erasure does. An erasure that is not finished is returned.
create or replace function holdfast.start_erasure(p_owner text, p_by text default null) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_owner text := holdfast.check_owner(p_owner);
  v_by text := left(coalesce(p_by, session_user), 200);
begin
  perform holdfast.refuse_users_of_erasures();
  if coalesce(v_owner, '') = '' then
    perform holdfast.raise_error('HF004', 'owner must not be empty.', 'owner', 'Pass the id of a user.');
  end if;
  insert into holdfast.erasures (id, owner, requested_by, requested_at, quiet_until)
  values (holdfast.new_id(), v_owner, v_by, v_now, v_now)
  on conflict (owner) where finished_at is null do nothing;
  if found then
    perform holdfast.record_audit_entry(v_by, 'owner.erase', v_owner);
    perform pg_notify('holdfast', 'maintenance');
  end if;
  return holdfast.get_erasure(v_owner);
end $$;

-- Return the newest erasure of an owner: {id, owner, requested_by, requested_at, finished_at, deleted, wait_s}, or
-- null. `wait_s` says how long the work that was interrupted may still write.
create or replace function holdfast.get_erasure(p_owner text) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
begin
  perform holdfast.refuse_users_of_erasures();
  return (
    select jsonb_build_object('id', e.id, 'owner', e.owner, 'requested_by', e.requested_by,
      'requested_at', e.requested_at, 'finished_at', e.finished_at, 'deleted', e.deleted,
      'wait_s', case when e.finished_at is null then greatest(extract(epoch from e.quiet_until - holdfast.now()), 0)
        else 0 end)
    from holdfast.erasures e where e.owner = p_owner order by e.requested_at desc, e.id desc limit 1);
end $$;

create or replace function holdfast.refuse_users_of_erasures() returns void
language plpgsql stable set search_path = '' as $$
begin
  if holdfast.get_end_user_id() is not null then
    perform holdfast.raise_error('HF005', 'Only services may erase an owner.', 'owner');
  end if;
end $$;

-- Delete up to about p_limit rows of an owner whose erasure is not finished. Return the erasure, with `more` if there
-- is more to delete at once.
create or replace function holdfast.advance_erasure(p_owner text, p_limit integer default 1000) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_limit integer := least(greatest(coalesce(p_limit, 1000), 1), 10000);
  v_erasure holdfast.erasures;
  v_step record;
  v_total integer := 0;
begin
  perform holdfast.refuse_users_of_erasures();
  select * into v_erasure from holdfast.erasures e where e.owner = p_owner and e.finished_at is null for update;
  if not found then
    return holdfast.get_erasure(p_owner) || '{"more": false}';
  end if;
  for v_step in
    select * from holdfast.run_erasure_steps(v_erasure.owner, v_limit, v_now, v_erasure.deleted = '{}') as s
    where s.row_total > 0
  loop
    v_erasure.deleted := v_erasure.deleted || jsonb_build_object(v_step.kind,
      coalesce((v_erasure.deleted ->> v_step.kind)::bigint, 0) + v_step.row_total);
    v_erasure.quiet_until := greatest(v_erasure.quiet_until, v_step.quiet_until);
    v_total := v_total + v_step.row_total;
  end loop;
  if v_total = 0 and v_erasure.quiet_until <= v_now and not exists (
      select from holdfast.artifacts f where f.owner = v_erasure.owner) then
    delete from holdfast.usage u where u.owner = v_erasure.owner;
    v_erasure.finished_at := v_now;
    perform holdfast.record_audit_entry(v_erasure.requested_by, 'owner.erased', v_erasure.owner, v_erasure.deleted);
  end if;
  update holdfast.erasures e set deleted = v_erasure.deleted, quiet_until = v_erasure.quiet_until,
    finished_at = v_erasure.finished_at where e.id = v_erasure.id;
  return holdfast.get_erasure(v_erasure.owner) || jsonb_build_object('more', v_total > 0);
end $$;

-- Run the steps of an erasure until one of them has found rows, and return what each deleted. Every call starts anew, so
-- that what was written since the last call is found. Steps that have to read a whole table come last.
create or replace function holdfast.run_erasure_steps(p_owner text, p_limit integer, p_now timestamptz,
  p_is_first_call boolean)
  returns table (kind text, row_total integer, quiet_until timestamptz)
language plpgsql set search_path = '' as $$
declare
  v_table record;
begin
  -- Nothing of the owner is started any more, and the owner's webhooks are not told of the end of the jobs.
  return query select 'settings', holdfast.delete_owner_settings(p_owner), null::timestamptz;
  row_total := (holdfast.cancel_jobs_chunk(jsonb_build_object('owner', p_owner), 'The owner is erased.', p_limit)
    ->> 'cancelled')::integer;
  if row_total > 0 then
    -- A worker learns of it with its next heartbeat at the latest, and then stops what it runs.
    return query select 'cancelled_jobs', row_total, p_now + interval '15 seconds';
    return;
  end if;
  if p_is_first_call then
    return query select * from holdfast.delete_messages_of_owner(p_owner, p_limit);
  end if;
  for v_table in select t.relation, t.owner_column from holdfast.owner_tables t order by t.position loop
    row_total := holdfast.delete_owner_rows(v_table.relation, v_table.owner_column, p_owner, p_limit);
    if row_total > 0 then
      return query select v_table.relation, row_total, null::timestamptz;
      return;
    end if;
  end loop;
  row_total := holdfast.mark_visible_owner_files(p_owner, p_limit, p_now);
  if row_total > 0 then
    return query select 'files', row_total, null::timestamptz;
    return;
  end if;
  row_total := holdfast.delete_owner_jobs(p_owner, p_limit);
  if row_total > 0 then
    return query select 'jobs', row_total, null::timestamptz;
    return;
  end if;
  return query select * from holdfast.delete_messages_of_owner(p_owner, p_limit);
  return query select 'provider_calls', holdfast.delete_owner_rows('holdfast.provider_calls', 'owner', p_owner, p_limit),
    null::timestamptz;
  return query select 'files', holdfast.erase_other_owner_files(p_owner, p_now), null::timestamptz;
end $$;

-- Delete what an owner has set up: schedules, webhooks, tickets, sessions, quotas, retention rules, keys and totals.
create or replace function holdfast.delete_owner_settings(p_owner text) returns integer
language plpgsql set search_path = '' as $$
declare
  v_table text;
  v_count integer;
  v_total integer := 0;
begin
  foreach v_table in array '{schedules,webhooks,inbound_webhooks,stream_tickets,user_sessions,quotas,
      artifact_retention_rules,bulk_actions,provider_usage}'::text[] loop
    execute format('delete from holdfast.%I r where r.owner = $1', v_table) using p_owner;
    get diagnostics v_count = row_count;
    v_total := v_total + v_count;
  end loop;
  delete from holdfast.activity_samples a where a.kind = 'owner' and a.name = p_owner;
  get diagnostics v_count = row_count;
  v_total := v_total + v_count;
  delete from holdfast.idempotency_keys k
  where k.scope = any (array['key:' || p_owner, 'unique:' || p_owner, 'throttle:' || p_owner]);
  get diagnostics v_count = row_count;
  return v_total + v_count;
end $$;

-- Delete messages of an owner from all registered queues. Return one row for each queue that had some.
create or replace function holdfast.delete_messages_of_owner(p_owner text, p_limit integer) returns table (kind text,
  row_total integer, quiet_until timestamptz)
language plpgsql set search_path = '' as $$
begin
  return query select 'messages', m.deleted, m.held_until from holdfast.owner_queues q
    cross join lateral holdfast.delete_owner_messages(q.queue_name, q.owner_field, p_owner, p_limit) as m
    where m.deleted > 0;
end $$;

-- Mark up to p_limit files of an owner that can be downloaded for deletion. Return their number.
create or replace function holdfast.mark_visible_owner_files(p_owner text, p_limit integer, p_now timestamptz)
  returns integer
language plpgsql set search_path = '' set plan_cache_mode = force_custom_plan as $$
declare
  v_ids uuid[] := array(select f.id from holdfast.artifacts f where f.owner = p_owner and f.status = 'visible'
    order by f.id desc limit p_limit for update);
begin
  update holdfast.artifacts f set status = 'deleting', deletion_reason = 'deleted', touched_at = p_now
  where f.id = any (v_ids);
  perform holdfast.subtract_deleted_artifacts_from_usage(v_ids, p_now);
  return cardinality(v_ids);
end $$;

-- Mark interrupted uploads of an owner for deletion, and delete the rows of files whose objects are gone. Return their
-- number. The objects of interrupted uploads are deleted a second time a day later; their rows stay until then, without
-- the owner.
create or replace function holdfast.erase_other_owner_files(p_owner text, p_now timestamptz) returns integer
language plpgsql set search_path = '' as $$
declare
  v_ids uuid[] := array(select f.id from holdfast.artifacts f where f.owner = p_owner
    and f.status in ('uploading', 'staged') for update);
  v_count integer;
begin
  update holdfast.artifacts f set status = 'deleting', deletion_reason = 'lost', touched_at = p_now
  where f.id = any (v_ids);
  perform holdfast.subtract_deleted_artifacts_from_usage(v_ids, p_now);
  update holdfast.artifacts f set owner = null, name = 'erased', meta = '{}'
  where f.owner = p_owner and f.status = 'gone' and f.deletion_reason = 'lost';
  delete from holdfast.artifacts f where f.owner = p_owner and f.status = 'gone';
  get diagnostics v_count = row_count;
  return cardinality(v_ids) + v_count;
end $$;

-- List objects of an owner that the caller must delete from the store, and then confirm with
-- confirm_artifact_deletions. Every object may be deleted twice, so nothing has to be claimed.
create or replace function holdfast.list_erasure_objects(p_owner text, p_limit integer default 1000) returns table (
  id uuid, key text)
language plpgsql stable security definer set search_path = '' as $$
begin
  perform holdfast.refuse_users_of_erasures();
  return query select f.id, f.key from holdfast.artifacts f where f.owner = p_owner and f.status = 'deleting'
    and exists (select from holdfast.erasures e where e.owner = p_owner and e.finished_at is null)
  order by f.id limit p_limit;
end $$;

-- Delete ended jobs of an owner with everything that was recorded of them. Return the number of jobs and batches.
create or replace function holdfast.delete_owner_jobs(p_owner text, p_limit integer) returns integer
language plpgsql set search_path = '' set plan_cache_mode = force_custom_plan as $$
declare
  -- A job may have thousands of tasks, so fewer jobs than rows are deleted at once.
  v_jobs uuid[] := array(select j.id from holdfast.jobs j where j.owner = p_owner and j.finished_at is not null
    order by j.id desc limit greatest(p_limit / 100, 1));
  v_batches uuid[] := array(select b.id from holdfast.batches b where b.owner = p_owner order by b.id desc limit p_limit);
  v_singles uuid[] := array(
    select h.id from holdfast.history h where h.owner = p_owner and h.job_id is null order by h.id desc limit p_limit);
  v_tasks uuid[] := v_singles || array(select t.id from holdfast.tasks t where t.job_id = any (v_jobs))
    || array(select h.id from holdfast.history h where h.job_id = any (v_jobs))
    || array(select t.id from holdfast.tasks t where t.owner = p_owner and t.job_id is null
      and t.status || '' in ('succeeded', 'failed', 'cancelled') limit p_limit);
begin
  delete from holdfast.attempts a where a.task_id = any (v_tasks);
  delete from holdfast.step_results s where s.task_id = any (v_tasks);
  delete from holdfast.events e where e.job_id = any (v_jobs || v_singles || v_batches || v_tasks);
  delete from holdfast.logs l where l.job_id = any (v_jobs || v_singles || v_tasks);
  delete from holdfast.dependencies d where d.job_id = any (v_jobs);
  delete from holdfast.tasks t where t.id = any (v_tasks);
  delete from holdfast.history h where h.id = any (v_tasks);
  delete from holdfast.jobs j where j.id = any (v_jobs);
  delete from holdfast.batches b where b.id = any (v_batches);
  return cardinality(v_jobs || v_singles || v_batches);
end $$;

-- Advance the erasures that are not finished, and delete their records with the audit log. `tick` calls it.
create or replace function holdfast.tick_erasures(p_limit integer default 1000) returns integer
language plpgsql security definer set search_path = '' as $$
declare
  v_owner text;
  v_count integer := 0;
begin
  delete from holdfast.erasures e where e.finished_at < holdfast.now() - interval '400 days';
  for v_owner in
    select e.owner from holdfast.erasures e where e.finished_at is null order by e.requested_at limit 10
      for update skip locked
  loop
    perform holdfast.advance_erasure(v_owner, p_limit);
    v_count := v_count + 1;
  end loop;
  return v_count;
end $$;

call holdfast.grant_execute('service_role', 'start_erasure', 'get_erasure', 'advance_erasure', 'list_erasure_objects',
  'tick_erasures');
call holdfast.grant_execute('holdfast_worker', 'tick_erasures');
