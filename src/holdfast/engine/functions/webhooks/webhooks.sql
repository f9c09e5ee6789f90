-- Outbound webhooks: create, list, change and delete them, and record how their deliveries end. deliveries.sql enqueues
-- the deliveries.

-- Create an outbound webhook and return its id. Raise HF006 when the user already has 20 webhooks.
create or replace function holdfast.create_webhook(
  p_url text, p_events text[], p_secret text, p_types text[] default null, p_owner text default null) returns uuid
language plpgsql security definer set search_path = '' as $$
declare
  v_user text := holdfast.get_end_user_id();
  v_owner text := holdfast.check_owner(coalesce(v_user, p_owner));
  v_id uuid := holdfast.new_id();
begin
  perform holdfast.validate_webhook(p_url, p_events, p_secret, p_types);
  if v_user is not null then
    -- Two requests of one user at the same time must not exceed the maximum together.
    perform pg_advisory_xact_lock(1213154901, hashtext('webhooks of ' || v_user));
    if (select count(*) from holdfast.webhooks w where w.owner = v_user) >= 20 then
      perform holdfast.raise_error('HF006', 'You have 20 webhooks, which is the maximum.', null, 'Delete one first.');
    end if;
  end if;
  insert into holdfast.webhooks (id, owner, url, events, types, secret, created_at, expiry_notified_until)
  values (v_id, v_owner, p_url, p_events, p_types, p_secret, holdfast.now(), holdfast.now());
  return v_id;
end $$;

-- Raise HF004 for an outbound webhook that could not be delivered. Whether the address may be called is checked before
-- every delivery, because names resolve to other addresses later.
create or replace function holdfast.validate_webhook(p_url text, p_events text[], p_secret text, p_types text[])
  returns void
language plpgsql immutable set search_path = '' as $$
declare
  v_text text;
begin
  perform holdfast.validate_webhook_url(p_url, 'url');
  if coalesce(cardinality(p_events), 0) not between 1 and 6
    or coalesce(cardinality(p_types), 1) not between 1 and 50 then
    perform holdfast.raise_error('HF004', 'A webhook needs 1 to 6 events and at most 50 types.', 'events');
  end if;
  foreach v_text in array p_events loop
    if v_text is null or v_text not in ('job.succeeded', 'job.partial', 'job.failed', 'job.cancelled',
      'batch.completed', 'artifact.expiring') then
      perform holdfast.raise_error('HF004', format('Event %s does not exist.', quote_nullable(left(v_text, 60))),
        'events',
        'Choose from job.succeeded, job.partial, job.failed, job.cancelled, batch.completed and artifact.expiring.');
    end if;
  end loop;
  foreach v_text in array coalesce(p_types, '{}') loop
    perform holdfast.check_name(v_text, 'types');
  end loop;
  perform holdfast.validate_webhook_secret(p_secret);
end $$;

-- Raise HF004, with the name of the field, for a text that is not a URL of http or https.
create or replace function holdfast.validate_webhook_url(p_url text, p_field text) returns void
language plpgsql immutable set search_path = '' as $$
begin
  if p_url is null or octet_length(p_url) not between 8 and 2000
    or p_url !~* '^https?://[^\x01-\x20\x7f/?#@\\]+([/?#][^\x01-\x20\x7f\\]*)?$' then
    perform holdfast.raise_error('HF004', format('Invalid URL %s.', quote_nullable(left(p_url, 60))), p_field,
      'Write http:// or https://, a host and a path, at most 2000 bytes and without a user name.');
  end if;
end $$;

-- Raise HF004 for a secret that cannot sign: signing decodes it.
create or replace function holdfast.validate_webhook_secret(p_secret text) returns void
language plpgsql immutable set search_path = '' as $$
begin
  if p_secret is null or p_secret !~ '^whsec_[A-Za-z0-9+/]+={0,2}$' or octet_length(p_secret) not between 30 and 700
    or (octet_length(p_secret) - length('whsec_')) % 4 <> 0 then
    perform holdfast.raise_error('HF004', 'secret must be whsec_ and the base64 of 16 to 512 bytes.', 'secret');
  end if;
end $$;

-- List outbound webhooks without their secrets, newest first. Users see their own webhooks.
create or replace function holdfast.list_webhooks()
returns table (id uuid, owner text, url text, events text[], types text[], active boolean, created_at timestamptz,
  failing_since timestamptz, failures integer, last_error text, disabled_at timestamptz, disabled_reason text)
language plpgsql stable security definer set search_path = '' as $$
declare
  v_user text := holdfast.get_end_user_id();
begin
  return query
  select w.id, w.owner, w.url, w.events, w.types, w.active, w.created_at, w.failing_since, w.failures, w.last_error,
    w.disabled_at, w.disabled_reason
  from holdfast.webhooks w
  where v_user is null or w.owner = v_user order by w.id desc limit 1000;
end $$;

-- Delete an outbound webhook. Return false when it does not exist.
create or replace function holdfast.delete_webhook(p_id uuid) returns boolean
language plpgsql security definer set search_path = '' as $$
declare
  v_user text := holdfast.get_end_user_id();
begin
  delete from holdfast.webhooks w where w.id = p_id and (v_user is null or w.owner = v_user);
  return found;
end $$;

-- Enable a webhook, which clears its failures, or disable it. Return false when it does not exist.
create or replace function holdfast.set_webhook_active(p_id uuid, p_enabled boolean, p_reason text default null)
  returns boolean
language plpgsql security definer set search_path = '' as $$
declare
  v_user text := holdfast.get_end_user_id();
begin
  update holdfast.webhooks w set active = p_enabled, failing_since = null, failures = 0, last_error = null,
    disabled_at = case when not p_enabled then holdfast.now(
      ) end, disabled_reason = case when not p_enabled then left(coalesce(p_reason, 'Disabled by an operator.'),
        500) end,
    expiry_notified_until = case when p_enabled and not w.active then holdfast.now() else w.expiry_notified_until end
  where w.id = p_id and (v_user is null or w.owner = v_user);
  return found;
end $$;

-- Record the result of a delivery; a success has no p_error. A webhook that has failed for three days and twenty times
-- in a row, or whose endpoint returned 410 Gone, is disabled. A success after a success writes nothing. Return
-- true when this call disabled the webhook.
create or replace function holdfast.record_webhook_result(
  p_id uuid, p_error text default null, p_gone boolean default false) returns boolean
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_webhook holdfast.webhooks;
begin
  if p_error is null then
    update holdfast.webhooks w set failing_since = null, failures = 0, last_error = null where w.id = p_id
      and w.failing_since is not null;
    return false;
  end if;
  update holdfast.webhooks w set failing_since = coalesce(w.failing_since, v_now), failures = w.failures + 1,
    last_error = left(p_error, 500)
  where w.id = p_id and w.active returning * into v_webhook;
  if not found or not (p_gone or (v_webhook.failures >= 20
    and v_webhook.failing_since <= v_now - interval '3 days')) then
    return false;
  end if;
  update holdfast.webhooks w set active = false, disabled_at = v_now, disabled_reason = v_webhook.last_error
    where w.id = p_id;
  perform holdfast.record_audit_entry('holdfast', 'webhook.disabled', p_id::text,
    jsonb_build_object('url', split_part(v_webhook.url, '?', 1), 'reason', v_webhook.last_error,
    'failures', v_webhook.failures, 'failing_since', v_webhook.failing_since));
  return true;
end $$;

-- Return the URL and the signing secret of a webhook; no row when it was deleted or disabled.
create or replace function holdfast.find_webhook_url_and_secret(p_id uuid) returns table (url text, secret text)
language plpgsql stable security definer set search_path = '' as $$
begin
  return query select w.url, w.secret from holdfast.webhooks w where w.id = p_id and w.active;
end $$;

call holdfast.grant_execute('holdfast_worker', 'find_webhook_url_and_secret', 'record_webhook_result');
call holdfast.grant_execute('service_role', 'create_webhook', 'list_webhooks', 'set_webhook_active', 'delete_webhook',
  'find_webhook_url_and_secret', 'record_webhook_result');
call holdfast.grant_execute('authenticated', 'create_webhook', 'list_webhooks', 'set_webhook_active', 'delete_webhook');
