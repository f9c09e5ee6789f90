-- Deletes files: first the row is marked, then the object is deleted, then the row.
--
-- SQL cannot delete objects. `tick_artifacts` marks rows in bounded steps. A process with access to the store claims
-- marked rows, deletes their objects and confirms the deletion. Every step can be repeated, by any number of callers.
-- An attempt that lost its lease can finish an upload very late. So the objects of lost attempts are deleted a second
-- time, a day later, before the row is deleted.

-- Subtract files that are marked for deletion from the usage of their owners. The caller has locked the rows.
create or replace function holdfast.subtract_deleted_artifacts_from_usage(p_ids uuid[], p_now timestamptz) returns void
language plpgsql set search_path = '' as $$
declare
  v_one record;
begin
  for v_one in
    with freed as (
      update holdfast.artifacts f set counted_in_usage = false where f.id = any (p_ids) and f.counted_in_usage
        returning f.owner, f.size
    )
    select f.owner, sum(f.size)::bigint as bytes, count(*) as files from freed f group by f.owner order by f.owner
  loop
    perform holdfast.charge_storage_quota(v_one.owner, -v_one.bytes, -v_one.files, p_now);
  end loop;
end $$;

-- Mark up to p_limit expired files for deletion, of one owner, or of all owners when p_owner is null. Return their
-- number.
create or replace function holdfast.mark_expired_artifacts(
  p_owner text, p_now timestamptz, p_limit integer) returns integer
language plpgsql set search_path = '' set plan_cache_mode = force_custom_plan as $$
declare
  v_ids uuid[] := array(
    select f.id from holdfast.artifacts f
    where f.status = 'visible' and f.expires_at <= p_now and (p_owner is null or f.owner = p_owner)
    order by f.expires_at limit p_limit for update skip locked);
  v_one record;
begin
  for v_one in
    with gone as (
      -- Visible files with an owner are always counted.
      update holdfast.artifacts f set status = 'deleting', deletion_reason = 'expired', touched_at = p_now,
        counted_in_usage = false
      where f.id = any (v_ids) returning f.owner, f.size
    )
    select g.owner, sum(g.size)::bigint as bytes, count(*) as files from gone g where g.owner is not null
      group by g.owner order by g.owner
  loop
    perform holdfast.charge_storage_quota(v_one.owner, -v_one.bytes, -v_one.files, p_now);
  end loop;
  return cardinality(v_ids);
end $$;

-- Mark abandoned files for deletion and return their number: staged files of attempts that ended without success,
-- files of saved steps of tasks that ended, and uploads without a lease that were not touched for 15 minutes. Other
-- files are checked again later.
create or replace function holdfast.mark_abandoned_artifacts(p_now timestamptz, p_limit integer) returns integer
language plpgsql set search_path = '' as $$
declare
  v_lost uuid[];
begin
  with candidates as materialized (
    select f.id, f.task_id, f.attempt, f.nonce, f.step_name, f.touched_at from holdfast.artifacts f
    where f.status in ('uploading', 'staged') and f.touched_at < p_now - interval '30 seconds'
    order by f.touched_at limit p_limit for update skip locked
  ), checked as (
    update holdfast.artifacts f set
      status = case when s.in_use then f.status else 'deleting' end, deletion_reason = case when not s.in_use
        then 'lost' end,
      touched_at = case when s.without_task then f.touched_at else p_now end
    from (
      select s.id, s.task_id is null as without_task,
        case when s.task_id is null then s.touched_at > p_now - interval '15 minutes'
        when s.step_name is not null then exists (select from holdfast.tasks t where t.id = s.task_id
          and t.status || '' in ('waiting', 'scheduled', 'ready', 'running'))
        else exists (select from holdfast.tasks t where t.id = s.task_id and t.attempt = s.attempt and t.nonce = s.nonce
          and t.status || '' = 'running') end as in_use
      from candidates s
    ) as s
    where f.id = s.id and not (s.without_task and s.in_use)
    returning f.id, f.status
  )
  select array_agg(j.id) into v_lost from checked j where j.status = 'deleting';
  perform holdfast.subtract_deleted_artifacts_from_usage(v_lost, p_now);
  return coalesce(cardinality(v_lost), 0);
end $$;

-- Run one bounded round of file maintenance. Return {expired, lost, replaced, purged, deletions_pending};
-- `deletions_pending` says whether objects are waiting to be deleted.
create or replace function holdfast.tick_artifacts(p_limit integer default 1000) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_result jsonb := jsonb_build_object('expired', holdfast.mark_expired_artifacts(null, v_now, p_limit),
    'lost', holdfast.mark_abandoned_artifacts(v_now, p_limit));
  v_ids uuid[] := array(
    select f.id from holdfast.artifacts f where f.status = 'deleting' and f.counted_in_usage limit p_limit
      for update skip locked);
  v_count integer;
begin
  perform holdfast.subtract_deleted_artifacts_from_usage(v_ids, v_now);
  delete from holdfast.artifacts f where f.id = any (array(
    select o.id from holdfast.artifacts o where o.status = 'gone' and o.deletion_reason <> 'lost'
      and o.touched_at < v_now - interval '30 days'
    order by o.touched_at limit p_limit for update skip locked));
  get diagnostics v_count = row_count;
  return v_result || jsonb_build_object('replaced', cardinality(v_ids), 'purged', v_count,
    'deletions_pending', exists (select from holdfast.artifacts f where f.status = 'deleting'
      and f.touched_at <= v_now));
end $$;

-- Claim up to p_limit objects that the caller must delete from the store. A claim that is not confirmed within five
-- minutes can be claimed again.
create or replace function holdfast.claim_artifact_deletions(p_limit integer default 1000) returns table (id uuid,
  key text)
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_column
declare
  v_now timestamptz := holdfast.now();
begin
  return query
  update holdfast.artifacts f set touched_at = case f.status when 'deleting' then v_now + interval '5 minutes'
    else v_now - interval '1 day' + interval '5 minutes' end
  where f.id = any (array(
      select d.id from holdfast.artifacts d where d.status = 'deleting' and d.touched_at <= v_now
      order by d.touched_at limit p_limit for update skip locked)
    || array(
      select g.id from holdfast.artifacts g where g.status = 'gone' and g.deletion_reason = 'lost'
        and g.touched_at <= v_now - interval '1 day'
      order by g.touched_at limit p_limit for update skip locked))
  returning f.id, f.key;
end $$;

-- Record that the objects of these files were deleted from the store. Return the number of files.
create or replace function holdfast.confirm_artifact_deletions(p_ids uuid[]) returns integer
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_count integer;
begin
  perform from holdfast.artifacts f where f.id = any (p_ids) order by f.id for update;
  delete from holdfast.artifacts f where f.id = any (p_ids) and f.status = 'gone' and f.deletion_reason = 'lost';
  update holdfast.artifacts f set status = 'gone', touched_at = v_now where f.id = any (p_ids)
    and f.status = 'deleting';
  get diagnostics v_count = row_count;
  perform holdfast.subtract_deleted_artifacts_from_usage(p_ids, v_now);
  return v_count;
end $$;

-- Return the keys that no row refers to: objects in the store that Holdfast does not know.
create or replace function holdfast.find_orphaned_object_keys(p_keys text[]) returns setof text
language plpgsql stable security definer set search_path = '' as $$
begin
  return query select k from unnest(p_keys) as k where not exists (select from holdfast.artifacts f where f.key = k);
end $$;

call holdfast.grant_execute('holdfast_worker', 'tick_artifacts', 'claim_artifact_deletions',
  'confirm_artifact_deletions',
  'find_orphaned_object_keys');
call holdfast.grant_execute('service_role', 'tick_artifacts', 'claim_artifact_deletions', 'confirm_artifact_deletions',
  'find_orphaned_object_keys');
