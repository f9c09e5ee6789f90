-- Idempotency keys and unique keys of jobs.

-- Reserve a key for a job, or return the id of the job that holds the key, which may already be deleted. The loser of a
-- race waits here for the commit or rollback of the winner.
create or replace function holdfast.reserve_idempotency_key(
  p_scope text, p_key text, p_job_id uuid, p_hash bytea, p_active_only boolean) returns uuid
language plpgsql set search_path = '' as $$
declare
  v_existing record;
begin
  if p_key is null then
    return null;
  end if;
  if octet_length(p_key) not between 1 and 1000 then
    perform holdfast.raise_error('HF004', 'key must be 1 to 1000 bytes long.', 'key');
  end if;
  loop
    insert into holdfast.idempotency_keys (scope, key, job_id, body_hash, active_only, keep_until)
    values (p_scope, p_key, p_job_id, p_hash, p_active_only, case when not p_active_only
      then holdfast.now() + interval '7 days' end)
    on conflict do nothing;
    if found then
      return null;
    end if;
    select k.job_id, k.body_hash into v_existing from holdfast.idempotency_keys k where k.scope = p_scope
      and k.key = p_key;
    exit when found;
  end loop;
  if not p_active_only and v_existing.body_hash <> p_hash then
    perform holdfast.raise_error('HF003', format('The key %s was used for a job with a different body.',
      quote_literal(left(p_key, 80))), 'key', 'Use a new key, or submit the same body again.');
  end if;
  return v_existing.job_id;
end $$;

-- Reserve the unique key of a job, or return the job that stands for this one: the live job with the same key; with
-- debounce_s a job that has not started, which gets the new arguments and waits again; with throttle_s the last job,
-- for that time.
create or replace function holdfast.reserve_unique_key(p_job jsonb, p_owner text, p_id uuid, p_now timestamptz)
  returns uuid
language plpgsql set search_path = '' as $$
declare
  v_throttle interval := holdfast.parse_number_field(p_job, 'throttle_s', 0.001, 315360000) * interval '1 second';
  v_scope text := case when v_throttle is null then 'unique:' else 'throttle:' end || coalesce(p_owner, '');
  v_existing uuid := holdfast.reserve_idempotency_key(v_scope, p_job ->> 'unique_key', p_id, ''::bytea, true);
  v_until timestamptz;
begin
  if v_existing is not null and (v_throttle is not null or p_job ? 'debounce_s') then
    select k.job_id, k.keep_until into v_existing, v_until from holdfast.idempotency_keys k
    where k.scope = v_scope and k.key = p_job ->> 'unique_key' for update;
    if v_throttle is null then
      update holdfast.tasks t set args = holdfast.parse_task_args(p_job),
        due_at = holdfast.parse_due_time(p_job, null, p_now)
      where t.id = v_existing and t.status || '' = 'scheduled' and t.attempt = 0;
      v_existing := case when found then v_existing end;
    elsif v_until <= p_now then
      v_existing := null;
    end if;
  end if;
  if v_existing is null and p_job ?| '{debounce_s,throttle_s}' then
    update holdfast.idempotency_keys k set job_id = p_id, keep_until = p_now + v_throttle
    where k.scope = v_scope and k.key = p_job ->> 'unique_key';
  end if;
  return v_existing;
end $$;
