-- Quotas: how many bytes and files an owner may have, and how many jobs they may start a day.
--
-- Every change locks the owner's row in `usage` until its transaction ends, so two that are each within the quota
-- cannot exceed it together. In the lock order that row comes last. Who has no quota pays for one look at a small table.

-- The quota that holds for an owner; no row when there is none.
create or replace function holdfast.quota_for(p_owner text) returns holdfast.quotas
language plpgsql stable set search_path = '' as $$
declare
  v_quota holdfast.quotas;
begin
  select * into v_quota from holdfast.quotas q where q.owner in (p_owner, '') order by q.owner = '' limit 1;
  return v_quota;
end $$;

-- Sets what an owner may have; null is as much as they like. Without an owner it is for everybody who has no quota of
-- their own.
create or replace function holdfast.put_quota(
  p_owner text default null, p_bytes bigint default null, p_files bigint default null, p_operations bigint default null) returns void
language plpgsql security definer set search_path = '' as $$
begin
  if least(p_bytes, p_files, p_operations) < 0 then
    perform holdfast.refuse('HF004', 'A quota cannot be negative.', 'quota');
  end if;
  insert into holdfast.quotas (owner, bytes, files, operations) values (coalesce(p_owner, ''), p_bytes, p_files, p_operations)
  on conflict (owner) do update set bytes = excluded.bytes, files = excluded.files, operations = excluded.operations;
end $$;

-- Back to what holds for everybody.
create or replace function holdfast.drop_quota(p_owner text) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  delete from holdfast.quotas q where q.owner = p_owner;
  return found;
end $$;

-- {owner, bytes: {used, limit}, files: {used, limit}, operations: {used, limit}}; a limit of null is none.
create or replace function holdfast.get_usage(p_owner text default null) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
declare
  v_owner text := coalesce(holdfast.calling_user(), p_owner);
  v_quota holdfast.quotas := holdfast.quota_for(v_owner);
  v_usage holdfast.usage;
begin
  select * into v_usage from holdfast.usage u where u.owner = v_owner;
  return jsonb_build_object('owner', v_owner,
    'bytes', jsonb_build_object('used', coalesce(v_usage.bytes, 0), 'limit', v_quota.bytes),
    'files', jsonb_build_object('used', coalesce(v_usage.files, 0), 'limit', v_quota.files),
    'operations', jsonb_build_object('used', case when v_usage.day = (holdfast.now() at time zone 'UTC')::date
      then v_usage.operations else 0 end, 'limit', v_quota.operations));
end $$;

create or replace function holdfast.refuse_quota(p_what text, p_used bigint, p_limit bigint, p_asked bigint) returns void
language plpgsql set search_path = '' as $$
begin
  raise exception using errcode = 'HF007', column = 'quota',
    message = format('The quota of %s is used up: %s used of %s, %s more asked.', p_what, p_used, p_limit, p_asked),
    detail = jsonb_build_object('quota', p_what, 'used', p_used, 'limit', p_limit, 'asked', p_asked)::text,
    hint = 'Delete files that are not needed any more, or have the quota raised.';
end $$;

-- Counts files in or out for their owner. Files that nobody owns are not counted.
create or replace function holdfast.use_storage(p_owner text, p_bytes bigint, p_files bigint, p_now timestamptz) returns void
language plpgsql set search_path = '' as $$
declare
  v_quota holdfast.quotas := holdfast.quota_for(p_owner);
  v_usage holdfast.usage;
begin
  insert into holdfast.usage as u (owner, bytes, files) values (p_owner, greatest(p_bytes, 0), greatest(p_files, 0))
  on conflict (owner) do update set bytes = u.bytes + p_bytes, files = u.files + p_files
  returning * into v_usage;
  if p_files > 0 and (v_usage.bytes > v_quota.bytes or v_usage.files > v_quota.files) then
    -- What has expired does not count, also when nobody has swept it yet.
    if holdfast.expire_artifacts(p_owner, p_now, 1000) > 0 then
      select * into v_usage from holdfast.usage u where u.owner = p_owner;
    end if;
    if v_usage.bytes > v_quota.bytes then
      perform holdfast.refuse_quota('bytes', v_usage.bytes - p_bytes, v_quota.bytes, p_bytes);
    elsif v_usage.files > v_quota.files then
      perform holdfast.refuse_quota('files', v_usage.files - p_files, v_quota.files, p_files);
    end if;
  end if;
end $$;

-- Jobs that an owner starts today; part of the transaction that submits them.
create or replace function holdfast.use_operations(p_owner text, p_count bigint, p_now timestamptz) returns void
language plpgsql set search_path = '' as $$
declare
  v_limit bigint := (select q.operations from holdfast.quotas q where q.owner in (p_owner, '') order by q.owner = '' limit 1);
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
      message = format('The quota of operations a day is used up: %s used of %s.', v_used - p_count, v_limit),
      detail = jsonb_build_object('quota', 'operations', 'used', v_used - p_count, 'limit', v_limit,
        'retry_after_s', ceil(extract(epoch from (v_day + 1)::timestamp at time zone 'UTC' - p_now)))::text,
      hint = 'Try again tomorrow, or have the quota raised.';
  end if;
end $$;

-- The same for a list of jobs as submit_many takes it.
create or replace function holdfast.use_operations(p_jobs jsonb, p_now timestamptz) returns void
language plpgsql set search_path = '' as $$
declare
  v_one record;
begin
  if not exists (select from holdfast.quotas q where q.operations is not null) then
    return;
  end if;
  for v_one in
    select j ->> 'owner' as owner, count(*) as jobs from jsonb_array_elements(p_jobs) as j
    where j ->> 'owner' is not null group by 1 order by 1
  loop
    perform holdfast.use_operations(v_one.owner, v_one.jobs, p_now);
  end loop;
end $$;

call holdfast.allow('holdfast_worker', 'get_usage');
call holdfast.allow('service_role', 'get_usage', 'put_quota', 'drop_quota');
call holdfast.allow('authenticated', 'get_usage');
