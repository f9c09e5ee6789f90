-- Retention of files: rules by owner and job type, and the expiry of one file.

-- Return how long a file is kept, in seconds; null means for ever. The most specific rule applies.
create or replace function holdfast.choose_artifact_ttl(p_owner text, p_type text) returns double precision
language plpgsql stable set search_path = '' as $$
begin
  return (
  select r.ttl_s from holdfast.artifact_retention_rules r
  where r.owner in (coalesce(p_owner, ''), '') and r.job_type in (coalesce(p_type, ''), '')
  order by r.owner <> '' and r.job_type <> '' desc, r.job_type <> '' desc, r.owner <> '' desc limit 1);
end $$;

-- Set how long files of an owner, of a job type, or of both are kept. Null matches all; without a ttl, for ever.
create or replace function holdfast.put_artifact_retention_rule(
  p_owner text default null, p_type text default null, p_ttl_s double precision default null) returns void
language plpgsql security definer set search_path = '' as $$
begin
  if p_ttl_s <= 0 or p_ttl_s > 3155760000 then
    perform holdfast.raise_error('HF004', format('ttl must be between 0 and 100 years, got %s s.', p_ttl_s), 'ttl');
  end if;
  insert into holdfast.artifact_retention_rules (owner, job_type, ttl_s)
    values (coalesce(holdfast.check_owner(p_owner), ''), coalesce(holdfast.check_text(p_type, 'type', 200), ''),
      p_ttl_s)
  on conflict (owner, job_type) do update set ttl_s = excluded.ttl_s;
end $$;

-- Delete a retention rule for files. Return false when the rule does not exist.
create or replace function holdfast.delete_artifact_retention_rule(
  p_owner text default null, p_type text default null) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  delete from holdfast.artifact_retention_rules r where r.owner = coalesce(p_owner, '')
    and r.job_type = coalesce(p_type, '');
  return found;
end $$;

-- Keep a visible file for p_ttl_s seconds from now; null means for ever. Return the new expiry.
create or replace function holdfast.set_artifact_ttl(p_id uuid, p_ttl_s double precision) returns timestamptz
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_until timestamptz;
begin
  if p_ttl_s <= 0 or p_ttl_s > 3.2e9 then
    perform holdfast.raise_error('HF004', 'ttl_s must be greater than 0 and at most 100 years.', 'ttl_s');
  end if;
  update holdfast.artifacts f set expires_at = v_now + p_ttl_s * interval '1 second'
  where f.id = p_id and f.status = 'visible' and (f.expires_at is null or f.expires_at > v_now)
  returning f.expires_at into v_until;
  if not found then
    perform holdfast.raise_error('HF002', format('File %s does not exist or has expired.', p_id), 'id');
  end if;
  return v_until;
end $$;

-- Keep a file that was stored without a task for ever, if it has not expired. Workers of message queues store files
-- with a short lifetime, and keep them in the transaction that refers to them. Raise HF002 if the file is gone.
create or replace function holdfast.keep_artifact(p_id uuid) returns void
language plpgsql security definer set search_path = '' as $$
begin
  update holdfast.artifacts f set expires_at = null
  where f.id = p_id and f.status = 'visible' and f.task_id is null
    and (f.expires_at is null or f.expires_at > holdfast.now());
  if not found then
    perform holdfast.raise_error('HF002', format('File %s does not exist, has expired or belongs to a task.', p_id),
      'id');
  end if;
end $$;

call holdfast.grant_execute('holdfast_worker', 'keep_artifact');
call holdfast.grant_execute('service_role', 'put_artifact_retention_rule', 'set_artifact_ttl', 'keep_artifact');
