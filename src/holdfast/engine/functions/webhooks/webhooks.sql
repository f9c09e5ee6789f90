-- Outbound webhooks: notify other systems when jobs end. Tasks of type `holdfast.webhook` deliver them, with retries as
-- for any other task. Inbound webhooks: endpoints through which other systems submit one type of job.
--
-- Without webhooks a job pays nothing: the triggers are created with the first webhook and dropped with the last. They
-- only insert tasks, in the transaction that ends the job.

-- Create an outbound webhook and return its id. Raise HF006 when the user already has 20 webhooks.
create or replace function holdfast.create_webhook(
  p_url text, p_events text[], p_secret text, p_types text[] default null, p_owner text default null) returns uuid
language plpgsql security definer set search_path = '' set lock_timeout = '5s' as $$
declare
  v_user text := holdfast.get_end_user_id();
  v_owner text := coalesce(v_user, p_owner);
  v_id uuid := holdfast.new_id();
  v_event text;
begin
  foreach v_event in array p_events loop
    if v_event not in ('job.succeeded', 'job.partial', 'job.failed', 'job.cancelled', 'batch.completed',
      'artifact.expiring') then
      perform holdfast.raise_error('HF004', format('Event %s does not exist.', quote_literal(left(v_event, 60))),
        'events',
        'Choose from job.succeeded, job.partial, job.failed, job.cancelled, batch.completed and artifact.expiring.');
    end if;
  end loop;
  perform pg_advisory_xact_lock(1213154901, 0);
  if v_user is not null and (select count(*) from holdfast.webhooks w where w.owner = v_user) >= 20 then
    perform holdfast.raise_error('HF006', 'You have 20 webhooks, which is the maximum.', null, 'Delete one first.');
  end if;
  insert into holdfast.webhooks (id, owner, url, events, types, secret, created_at, expiry_notified_until)
  values (v_id, v_owner, p_url, p_events, p_types, p_secret, holdfast.now(), holdfast.now());
  perform holdfast.set_webhook_triggers(true);
  return v_id;
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
language plpgsql security definer set search_path = '' set lock_timeout = '5s' as $$
declare
  v_user text := holdfast.get_end_user_id();
begin
  perform pg_advisory_xact_lock(1213154901, 0);
  delete from holdfast.webhooks w where w.id = p_id and (v_user is null or w.owner = v_user);
  if not found then
    return false;
  end if;
  perform holdfast.set_webhook_triggers(exists (select from holdfast.webhooks));
  return true;
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

-- Enqueue artifact.expiring events for files that expire within a day, and return the number of files. A webhook
-- that fails because of its data does not stop the others.
create or replace function holdfast.tick_webhooks(p_limit integer default 1000) returns integer
language plpgsql set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_paused uuid[] := holdfast.list_paused_subjects('webhook for expiring files', v_now)::uuid[];
begin
  return holdfast.run_isolated('webhook for expiring files',
    format('select holdfast.enqueue_expiry_events($1::uuid[], $2, %s)', p_limit), array(
      select w.id::text from holdfast.webhooks w
      where w.active and 'artifact.expiring' = any (w.events) and w.id <> all (v_paused) order by w.id), v_now);
end $$;

-- Enqueue one artifact.expiring event per job for files that expire within a day, for these webhooks. Return the
-- number of files. A file that lives for less than a day gets no event.
create or replace function holdfast.enqueue_expiry_events(p_webhooks uuid[], p_now timestamptz, p_limit integer)
  returns integer
language plpgsql set search_path = '' as $$
declare
  v_webhook record;
  v_sent record;
  v_count integer := 0;
begin
  for v_webhook in
    select w.id, w.owner, w.types, coalesce(w.expiry_notified_until, w.created_at) as expiry_notified_until
      from holdfast.webhooks w
    where w.id = any (p_webhooks) and w.active and 'artifact.expiring' = any (w.events) order by w.id
    for update skip locked
  loop
    with due as materialized (
      select f.id, f.job_id, f.name, f.kind, f.content_type as type, f.size, f.expires_at, f.owner, f.job_type
        from holdfast.artifacts f
      where f.status = 'visible' and f.expires_at > greatest(v_webhook.expiry_notified_until, p_now)
        and f.expires_at <= p_now + interval '1 day'
        and (v_webhook.owner is null or f.owner = v_webhook.owner)
      order by f.expires_at fetch first (p_limit) rows with ties
    ), sent as (
      select holdfast.enqueue_webhook_delivery(v_webhook.id, 'artifact.expiring',
        jsonb_build_object('job', d.job_id, 'owner', min(d.owner), 'expires_at',
        min(d.expires_at), 'artifacts', jsonb_agg(to_jsonb(d) - '{job_id,owner,job_type}'::text[] order by d.id)))
      from due d where v_webhook.types is null or d.job_type = any (v_webhook.types) group by d.job_id
    )
    select (select count(*)::int from due) as files, (select max(d.expires_at) from due d) as last,
      (select count(*) from sent) as jobs into v_sent;
    update holdfast.webhooks w set expiry_notified_until = case when v_sent.files < p_limit
      then p_now + interval '1 day' else v_sent.last end
    where w.id = v_webhook.id;
    v_count := v_count + v_sent.files;
  end loop;
  return v_count;
end $$;

-- Return the URL and the signing secret of a webhook; no row when it was deleted or disabled.
create or replace function holdfast.find_webhook_url_and_secret(p_id uuid) returns table (url text, secret text)
language plpgsql stable security definer set search_path = '' as $$
begin
  return query select w.url, w.secret from holdfast.webhooks w where w.id = p_id and w.active;
end $$;

-- Create or drop the triggers that enqueue deliveries.
create or replace function holdfast.set_webhook_triggers(p_enabled boolean) returns void
language plpgsql set search_path = '' as $$
begin
  if p_enabled = exists (select from pg_catalog.pg_trigger where tgrelid = 'holdfast.jobs'::regclass
    and tgname = 'enqueue_webhook_deliveries') then
    return;
  end if;
  if p_enabled then
    create trigger enqueue_webhook_deliveries after insert on holdfast.history referencing new table as new_rows
      for each statement execute function holdfast.enqueue_webhooks_for_tasks();
    create trigger enqueue_webhook_deliveries after update on holdfast.jobs for each row
      when (old.finished_at is null
        and new.finished_at is not null) execute function holdfast.enqueue_webhooks_for_job();
    create trigger enqueue_webhook_deliveries after update on holdfast.batches for each row
      when (old.finished_at is null
        and new.finished_at is not null) execute function holdfast.enqueue_webhooks_for_batch();
  else
    drop trigger enqueue_webhook_deliveries on holdfast.history;
    drop trigger enqueue_webhook_deliveries on holdfast.jobs;
    drop trigger enqueue_webhook_deliveries on holdfast.batches;
  end if;
end $$;

-- Enqueue a delivery for every active webhook that subscribes to the event.
create or replace function holdfast.enqueue_webhook_deliveries(
  p_event text, p_type text, p_owner text, p_body jsonb) returns void
language plpgsql set search_path = '' as $$
begin
  perform holdfast.enqueue_webhook_delivery(w, p_event, p_body)
  from holdfast.list_subscribed_webhooks(p_event, p_type, p_owner) as w;
end $$;

-- Enqueue the same deliveries one by one. A delivery that cannot be enqueued is recorded as a problem, because it must
-- not undo the end of the job.
create or replace function holdfast.enqueue_webhook_deliveries_one_by_one(
  p_event text, p_type text, p_owner text, p_body jsonb) returns void
language plpgsql set search_path = '' as $$
declare
  v_id uuid;
begin
  for v_id in select w from holdfast.list_subscribed_webhooks(p_event, p_type, p_owner) as w loop
    begin
      perform holdfast.enqueue_webhook_delivery(v_id, p_event, p_body);
    exception when others then
      if holdfast.is_temporary_error(sqlstate) then
        raise;
      end if;
      perform holdfast.record_maintenance_problem('webhook', v_id::text, sqlerrm, holdfast.now());
    end;
  end loop;
end $$;

-- List the active webhooks that subscribe to the event.
create or replace function holdfast.list_subscribed_webhooks(p_event text, p_type text, p_owner text)
  returns setof uuid
language plpgsql stable set search_path = '' as $$
begin
  return query select w.id from holdfast.webhooks w
  where w.active and p_event = any (w.events) and (w.owner is null or w.owner = p_owner)
    and (w.types is null or p_type = any (w.types)) and p_type is distinct from 'holdfast.webhook' order by w.id;
end $$;

-- Submit the job that delivers one event to one webhook.
create or replace function holdfast.enqueue_webhook_delivery(p_id uuid, p_event text, p_body jsonb) returns void
language plpgsql set search_path = '' as $$
begin
  perform holdfast.submit_for_owner(null, jsonb_build_object('type', 'holdfast.webhook', 'queue', 'webhooks',
    'attempts', 9, 'base_s', 5,
    'cap_s', 21600, 'timeout_s', 60, 'limit_key', p_id, 'args', jsonb_build_object('webhook', p_id, 'event', p_event,
      'delivery', holdfast.new_id(), 'body', p_body)));
end $$;

-- Enqueue the deliveries of one event to all webhooks that match. If one of them cannot be enqueued, enqueue the others
-- one by one, so that the change that fired the trigger is not refused.
create or replace function holdfast.enqueue_deliveries_of_event(p_event text, p_type text, p_owner text, p_body jsonb)
  returns void
language plpgsql set search_path = '' as $$
begin
  perform holdfast.enqueue_webhook_deliveries(p_event, p_type, p_owner, p_body);
exception when others then
  if holdfast.is_temporary_error(sqlstate) then
    raise;
  end if;
  perform holdfast.enqueue_webhook_deliveries_one_by_one(p_event, p_type, p_owner, p_body);
end $$;

-- Enqueue webhook deliveries for jobs of one task that ended (trigger on history).
create or replace function holdfast.enqueue_webhooks_for_tasks() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
  perform holdfast.enqueue_deliveries_of_event('job.' || n.status, k.type, n.owner, jsonb_build_object('id', n.id,
    'type', k.type, 'status', n.status, 'owner', n.owner, 'finished_at', n.finished_at))
  from new_rows n join holdfast.task_policies k on k.id = n.policy_id where n.job_id is null;
  return null;
end $$;

-- Enqueue webhook deliveries for a job of several tasks that ended (trigger on jobs).
create or replace function holdfast.enqueue_webhooks_for_job() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
  perform holdfast.enqueue_deliveries_of_event('job.' || new.status, new.type, new.owner, jsonb_build_object('id',
    new.id, 'type', new.type, 'status', new.status, 'owner', new.owner, 'finished_at', new.finished_at));
  return null;
end $$;

-- Enqueue webhook deliveries for a batch that completed (trigger on batches).
create or replace function holdfast.enqueue_webhooks_for_batch() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
  perform holdfast.enqueue_deliveries_of_event('batch.completed', null, new.owner, jsonb_build_object('id', new.id,
    'name', new.name, 'owner', new.owner, 'total', new.total, 'failed', new.failed, 'finished_at', new.finished_at));
  return null;
end $$;

-- Create or replace an inbound webhook.
create or replace function holdfast.put_inbound_webhook(
  p_name text, p_type text, p_queue text, p_owner text, p_secret text) returns void
language plpgsql security definer set search_path = '' as $$
begin
  insert into holdfast.inbound_webhooks (name, job_type, queue, owner, secret, created_at)
  values (p_name, holdfast.check_name(p_type, 'type'), holdfast.check_name(p_queue, 'queue'), p_owner, p_secret,
    holdfast.now())
  on conflict (name) do update set job_type = excluded.job_type, queue = excluded.queue, owner = excluded.owner,
    secret = excluded.secret;
end $$;

-- Return the job type, queue, owner and secret of an inbound webhook, or no row.
create or replace function holdfast.get_inbound_webhook(p_name text)
returns table (job_type text, queue text, owner text, secret text)
language plpgsql stable security definer set search_path = '' as $$
begin
  return query select h.job_type, h.queue, h.owner, h.secret from holdfast.inbound_webhooks h where h.name = p_name;
end $$;

-- List inbound webhooks by name, without their secrets.
create or replace function holdfast.list_inbound_webhooks() returns table (name text, type text, queue text,
  owner text, created_at timestamptz)
language plpgsql stable security definer set search_path = '' as $$
begin
  return query select h.name, h.job_type, h.queue, h.owner, h.created_at from holdfast.inbound_webhooks h
    order by h.name limit 1000;
end $$;

-- Delete an inbound webhook. Return false when it does not exist.
create or replace function holdfast.delete_inbound_webhook(p_name text) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  delete from holdfast.inbound_webhooks h where h.name = p_name;
  return found;
end $$;

call holdfast.grant_execute('holdfast_worker', 'find_webhook_url_and_secret', 'record_webhook_result');
call holdfast.grant_execute('service_role', 'create_webhook', 'list_webhooks', 'set_webhook_active', 'delete_webhook',
  'find_webhook_url_and_secret', 'record_webhook_result', 'put_inbound_webhook', 'get_inbound_webhook',
  'list_inbound_webhooks', 'delete_inbound_webhook');
call holdfast.grant_execute('authenticated', 'create_webhook', 'list_webhooks', 'set_webhook_active', 'delete_webhook');
