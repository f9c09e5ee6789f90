-- Stream tickets: a ticket opens the event stream of one job once, for a client that cannot send headers. It is replaced
-- by a pass, with which the same browser reconnects to the same stream.
--
-- Tickets and passes never outlive the right of the caller who requested the ticket: the token of a user (not_after) or
-- a service key, which every read checks. A ticket that was requested with the key of the settings is stored under a
-- hash that depends on this key, so that it ends when the key changes.

-- Return whether a ticket or pass has not expired, and the service key for which it was issued is active.
create or replace function holdfast.is_stream_ticket_active(p_ticket holdfast.stream_tickets) returns boolean
language plpgsql stable set search_path = '' as $$
begin
  return p_ticket.expires_at > holdfast.now()
    and (p_ticket.key_id is null or holdfast.is_service_key_active(p_ticket.key_id));
end $$;

-- Store a ticket for the event stream of a job, and return whether it is stored. p_issuer is `user` (with p_owner and
-- p_not_after, when the token expires), `key` (with p_key, the prefix of the service key) or `settings_key`. Return
-- false when the token has expired or the service key is not active.
create or replace function holdfast.issue_stream_ticket(p_hash bytea, p_job uuid, p_issuer text, p_owner text,
  p_key text, p_not_after timestamptz, p_lifetime_s double precision)
returns boolean
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_key uuid := case when p_issuer = 'key' then holdfast.find_active_service_key(p_key) end;
begin
  if p_not_after <= v_now or (p_issuer = 'key' and v_key is null) then
    return false;
  end if;
  insert into holdfast.stream_tickets (hash, kind, job_id, issuer, owner, key_id, not_after, expires_at)
  values (p_hash, 'ticket', p_job, p_issuer, p_owner, v_key, p_not_after,
    least(v_now + least(p_lifetime_s, 86400) * interval '1 second', p_not_after));
  return true;
end $$;

-- Replace a ticket with one of these hashes by a pass and return the pass; no row when the ticket is not valid. Of two
-- callers that present the same ticket, only the one whose DELETE finds it succeeds. p_passes are the hash of the pass
-- for tickets of users and service keys, and for tickets of the key of the settings.
create or replace function holdfast.redeem_stream_ticket(p_hashes bytea[], p_job uuid, p_passes bytea[],
  p_lifetime_s double precision)
returns table (job_id uuid, issuer text, owner text, key_prefix text, expires_at timestamptz)
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_column
declare
  v_hash bytea;
begin
  with used as (
    delete from holdfast.stream_tickets t
    where t.hash = any (p_hashes) and t.job_id = p_job and t.kind = 'ticket' returning t
  )
  insert into holdfast.stream_tickets (hash, kind, job_id, issuer, owner, key_id, not_after, expires_at)
  select p_passes[case when (u.t).issuer = 'settings_key' then 2 else 1 end], 'pass', (u.t).job_id, (u.t).issuer,
    (u.t).owner, (u.t).key_id, (u.t).not_after,
    least(holdfast.now() + least(p_lifetime_s, 86400) * interval '1 second', (u.t).not_after)
  from used u where holdfast.is_stream_ticket_active(u.t)
  returning hash into v_hash;
  return query select * from holdfast.find_stream_pass(array[v_hash], p_job);
end $$;

-- Return the valid pass with one of these hashes for the event stream of a job, or no row.
create or replace function holdfast.find_stream_pass(p_hashes bytea[], p_job uuid)
returns table (job_id uuid, issuer text, owner text, key_prefix text, expires_at timestamptz)
language plpgsql stable security definer set search_path = '' as $$
begin
  return query
  select t.job_id, t.issuer, t.owner, k.prefix, least(t.expires_at, k.expires_at)
  from holdfast.stream_tickets t left join holdfast.service_keys k on k.id = t.key_id
  where t.hash = any (p_hashes) and t.job_id = p_job and t.kind = 'pass' and holdfast.is_stream_ticket_active(t);
end $$;

call holdfast.grant_execute('service_role', 'issue_stream_ticket', 'redeem_stream_ticket', 'find_stream_pass');
