-- Quotas: how many bytes and files an owner may store, and how many jobs an owner may submit per day.
--
-- Every change locks the owner's row in `usage` until its transaction ends, so that two changes that are each within
-- the quota cannot exceed it together. This row comes last in the lock order. An owner without a quota costs one read
-- of a small table.

-- Return the quota that applies to an owner: its own, or the default quota. All columns are null without either.
create or replace function holdfast.get_effective_quota(p_owner text) returns holdfast.quotas
language plpgsql stable set search_path = '' as $$
declare
  v_quota holdfast.quotas;
begin
  select * into v_quota from holdfast.quotas q where q.owner in (p_owner, '') order by q.owner = '' limit 1;
  return v_quota;
end $$;

-- Set the quota of an owner; null means no limit. Without an owner, set the quota of every owner that has none of its
-- own.
create or replace function holdfast.put_quota(
  p_owner text default null, p_bytes bigint default null, p_files bigint default null,
    p_operations bigint default null) returns void
language plpgsql security definer set search_path = '' as $$
begin
  if least(p_bytes, p_files, p_operations) < 0 then
    perform holdfast.raise_error('HF004', 'A quota cannot be negative.', 'quota');
  end if;
  insert into holdfast.quotas (owner, bytes, files, operations) values (coalesce(holdfast.check_owner(p_owner), ''),
    p_bytes, p_files, p_operations)
  on conflict (owner) do update set bytes = excluded.bytes, files = excluded.files, operations = excluded.operations;
end $$;

-- Delete the quota of an owner, so that the default quota applies. False if there was none.
create or replace function holdfast.delete_quota(p_owner text) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  delete from holdfast.quotas q where q.owner = p_owner;
  return found;
end $$;

-- Return the quotas and usage of an owner: {owner, bytes: {used, limit}, files: {used, limit}, operations: {used,
-- limit}}; a limit of null means no limit.
create or replace function holdfast.get_owner_usage(p_owner text default null) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
declare
  v_owner text := coalesce(holdfast.get_end_user_id(), p_owner);
  v_quota holdfast.quotas := holdfast.get_effective_quota(v_owner);
  v_usage holdfast.usage;
begin
  select * into v_usage from holdfast.usage u where u.owner = v_owner;
  return jsonb_build_object('owner', v_owner,
    'bytes', jsonb_build_object('used', coalesce(v_usage.bytes, 0), 'limit', v_quota.bytes),
    'files', jsonb_build_object('used', coalesce(v_usage.files, 0), 'limit', v_quota.files),
    'operations', jsonb_build_object('used', case when v_usage.day = (holdfast.now() at time zone 'UTC')::date
      then v_usage.operations else 0 end, 'limit', v_quota.operations));
end $$;

-- Raise HF007 with the quota, its use and the requested amount.
create or replace function holdfast.raise_quota_error(p_quota text, p_used bigint, p_limit bigint, p_requested bigint)
  returns void
language plpgsql set search_path = '' as $$
begin
  raise exception using errcode = 'HF007', column = 'quota',
    message = format('The quota of %s is exceeded: %s of %s used, %s more requested.', p_quota, p_used, p_limit,
      p_requested),
    detail = jsonb_build_object('quota', p_quota, 'used', p_used, 'limit', p_limit, 'requested', p_requested)::text,
    hint = 'Delete files that you no longer need, or ask for a higher quota.';
end $$;

-- Add files to, or subtract them from, the usage of their owner. Files without an owner are not counted.
create or replace function holdfast.charge_storage_quota(p_owner text, p_bytes bigint, p_files bigint,
  p_now timestamptz)
  returns void
language plpgsql set search_path = '' as $$
declare
  v_quota holdfast.quotas := holdfast.get_effective_quota(p_owner);
  v_usage holdfast.usage;
begin
  insert into holdfast.usage as u (owner, bytes, files) values (p_owner, greatest(p_bytes, 0), greatest(p_files, 0))
  on conflict (owner) do update set bytes = u.bytes + p_bytes, files = u.files + p_files
  returning * into v_usage;
  if p_files > 0 and (v_usage.bytes > v_quota.bytes or v_usage.files > v_quota.files) then
    -- Expired files do not count, even before they are deleted.
    if holdfast.mark_expired_artifacts(p_owner, p_now, 1000) > 0 then
      select * into v_usage from holdfast.usage u where u.owner = p_owner;
    end if;
    if v_usage.bytes > v_quota.bytes then
      perform holdfast.raise_quota_error('bytes', v_usage.bytes - p_bytes, v_quota.bytes, p_bytes);
    elsif v_usage.files > v_quota.files then
      perform holdfast.raise_quota_error('files', v_usage.files - p_files, v_quota.files, p_files);
    end if;
  end if;
end $$;

-- Count jobs that an owner submits today, in the transaction that submits them. Raise HF006 above the quota.
create or replace function holdfast.charge_daily_job_quota(p_owner text, p_count bigint, p_now timestamptz) returns void
language plpgsql set search_path = '' as $$
declare
  v_limit bigint := (select q.operations from holdfast.quotas q where q.owner in (p_owner, '') order by q.owner = ''
    limit 1);
  v_day date := (p_now at time zone 'UTC')::date;
  v_used bigint;
begin
  if v_limit is null then
    return;
  end if;
  insert into holdfast.usage as u (owner, day, operations) values (p_owner, v_day, p_count)
  on conflict (owner) do update set day = v_day,
    operations = case when u.day = v_day then u.operations else 0 end + p_count
  returning u.operations into v_used;
  if v_used > v_limit then
    raise exception using errcode = 'HF006', column = 'quota',
      message = format('The quota of jobs per day is exceeded: %s of %s used.', v_used - p_count, v_limit),
      detail = jsonb_build_object('quota', 'operations', 'used', v_used - p_count, 'limit', v_limit,
        'retry_after_s', ceil(extract(epoch from (v_day + 1)::timestamp at time zone 'UTC' - p_now)))::text,
      hint = 'Try again tomorrow, or ask for a higher quota.';
  end if;
end $$;

-- The same for the argument of submit_many.
create or replace function holdfast.charge_daily_job_quota(p_jobs jsonb, p_now timestamptz) returns void
language plpgsql set search_path = '' as $$
declare
  v_row record;
begin
  if not exists (select from holdfast.quotas q where q.operations is not null) then
    return;
  end if;
  for v_row in
    select j ->> 'owner' as owner, count(*) as jobs from jsonb_array_elements(p_jobs) as j
    where j ->> 'owner' is not null group by 1 order by 1
  loop
    perform holdfast.charge_daily_job_quota(v_row.owner, v_row.jobs, p_now);
  end loop;
end $$;

call holdfast.grant_execute('holdfast_worker', 'get_owner_usage');
call holdfast.grant_execute('service_role', 'get_owner_usage', 'put_quota', 'delete_quota');
call holdfast.grant_execute('authenticated', 'get_owner_usage');
