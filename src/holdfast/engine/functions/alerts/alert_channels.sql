-- Alert channels: where notifications are sent. A notification is a job of type `holdfast.alert` in the queue `alerts`.

-- Create or replace a channel. p_target is the URL of a webhook or of a Slack-compatible webhook, or e-mail addresses
-- separated by commas. Webhooks need a secret, which signs the requests.
create or replace function holdfast.put_alert_channel(p_name text, p_kind text, p_target text,
  p_secret text default null) returns void
language plpgsql security definer set search_path = '' as $$
begin
  perform holdfast.check_name(p_name, 'name');
  case p_kind
    when 'webhook' then perform holdfast.validate_webhook_url(p_target, 'target'),
      holdfast.validate_webhook_secret(p_secret);
    when 'slack' then perform holdfast.validate_webhook_url(p_target, 'target');
    when 'email' then perform holdfast.validate_email_addresses(p_target);
    else perform holdfast.raise_error('HF004', format('kind must be webhook, slack or email, got %s.',
      quote_nullable(left(p_kind, 60))), 'kind');
  end case;
  insert into holdfast.alert_channels (name, kind, target, secret, created_at)
  values (p_name, p_kind, p_target, case when p_kind = 'webhook' then p_secret end, holdfast.now())
  on conflict (name) do update set kind = excluded.kind, target = excluded.target, secret = excluded.secret,
    enabled = true, failing_since = null, failures = 0, last_error = null;
end $$;

-- Raise HF004 unless the text is one to twenty e-mail addresses separated by commas.
create or replace function holdfast.validate_email_addresses(p_target text) returns void
language plpgsql immutable set search_path = '' as $$
declare
  v_address text;
begin
  if p_target is null or octet_length(p_target) not between 3 and 2000
    or cardinality(string_to_array(p_target, ',')) > 20 then
    perform holdfast.raise_error('HF004', 'target must be 1 to 20 e-mail addresses, at most 2000 bytes.', 'target');
  end if;
  foreach v_address in array string_to_array(p_target, ',') loop
    if btrim(v_address, ' ') !~ '^[A-Za-z0-9.!#$%&''*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9]([A-Za-z0-9.-]{0,250}[A-Za-z0-9])?$'
      or v_address ~ '\.\.|\.@|@.*-\.' then
      perform holdfast.raise_error('HF004', format('Invalid e-mail address %s.', quote_literal(left(v_address, 80))),
        'target', 'Write name@example.com, and separate several addresses by commas.');
    end if;
  end loop;
end $$;

-- List channels by name, without secrets. The path of a Slack URL is a secret.
create or replace function holdfast.list_alert_channels()
  returns table (name text, kind text, target text, enabled boolean, created_at timestamptz, sent_at timestamptz,
    failing_since timestamptz, failures integer, last_error text)
language plpgsql stable security definer set search_path = '' as $$
#variable_conflict use_column
begin
  return query
  select c.name, c.kind, case c.kind when 'slack' then substring(c.target from '^[^:]*://[^/?#]*') || '/…'
      when 'webhook' then split_part(c.target, '?', 1) else c.target end,
    c.enabled, c.created_at, c.sent_at, c.failing_since, c.failures, c.last_error
  from holdfast.alert_channels c order by c.name limit 1000;
end $$;

-- Enable a channel, which clears its failures, or disable it. Return false when it does not exist.
create or replace function holdfast.set_alert_channel_enabled(p_name text, p_enabled boolean) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  update holdfast.alert_channels c set enabled = p_enabled, failing_since = null, failures = 0, last_error = null
    where c.name = p_name;
  return found;
end $$;

-- Delete a channel, also from the rules that name it. Return false when it does not exist.
create or replace function holdfast.delete_alert_channel(p_name text) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  delete from holdfast.alert_channels c where c.name = p_name;
  if not found then
    return false;
  end if;
  update holdfast.alert_rules r set channels = array_remove(r.channels, p_name) where p_name = any (r.channels);
  return true;
end $$;

-- Return the address and the secret of a channel; no row when it was deleted or disabled. For those who deliver.
create or replace function holdfast.find_alert_channel_target(p_name text)
  returns table (kind text, target text, secret text)
language plpgsql stable security definer set search_path = '' as $$
begin
  return query select c.kind, c.target, c.secret from holdfast.alert_channels c where c.name = p_name and c.enabled;
end $$;

-- Record the result of a notification; a success has no p_error.
create or replace function holdfast.record_alert_delivery(p_name text, p_error text default null) returns void
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
begin
  update holdfast.alert_channels c set sent_at = case when p_error is null then v_now else c.sent_at end,
    failing_since = case when p_error is not null then coalesce(c.failing_since, v_now) end,
    failures = case when p_error is not null then c.failures + 1 else 0 end, last_error = left(p_error, 500)
  where c.name = p_name;
end $$;

-- Submit one job per channel with the changes that concern it. p_events is [{event, channels, alert}]; a rule without
-- channels notifies all of them, unless its severity is info. A channel that fails does not stop the others.
create or replace function holdfast.enqueue_alert_notifications(p_events jsonb, p_now timestamptz) returns void
language plpgsql set search_path = '' as $$
declare
  v_max_alerts constant integer := 50;
  v_channel text;
  v_chosen jsonb;
begin
  if p_events = '[]' then
    return;
  end if;
  for v_channel in select c.name from holdfast.alert_channels c where c.enabled order by c.name loop
    select jsonb_agg(jsonb_build_object('event', e -> 'event') || (e -> 'alert')) into v_chosen
    from jsonb_array_elements(p_events) as e
    where case when jsonb_typeof(e -> 'channels') = 'array' then e -> 'channels' ? v_channel
      else e #>> '{alert,severity}' <> 'info' end;
    continue when v_chosen is null;
    begin
      perform holdfast.submit_alert_notification(v_channel, jsonb_path_query_array(v_chosen, '$[0 to 49]'),
        greatest(jsonb_array_length(v_chosen) - v_max_alerts, 0));
    exception when others then
      perform holdfast.record_maintenance_problem('alert channel', v_channel, sqlerrm, p_now);
    end;
  end loop;
end $$;

-- Submit the job that delivers alerts to one channel, and return its id. p_more is the number of alerts left out.
create or replace function holdfast.submit_alert_notification(p_channel text, p_alerts jsonb, p_more integer)
  returns uuid
language plpgsql set search_path = '' as $$
begin
  return (holdfast.submit_for_owner(null, jsonb_build_object('type', 'holdfast.alert', 'queue', 'alerts', 'attempts', 8,
    'base_s', 5, 'cap_s', 600, 'timeout_s', 60, 'limit_key', p_channel, 'args', jsonb_build_object(
      'channel', p_channel, 'delivery', holdfast.new_id(), 'alerts', p_alerts, 'more', p_more))) ->> 'id')::uuid;
end $$;

-- Send a test notification to a channel, and return the id of its job. Raise HF002 when the channel does not exist.
create or replace function holdfast.test_alert_channel(p_name text) returns uuid
language plpgsql security definer set search_path = '' as $$
begin
  if not exists (select from holdfast.alert_channels c where c.name = p_name) then
    perform holdfast.raise_error('HF002', format('Alert channel %s does not exist.',
      coalesce(quote_literal(left(p_name, 80)), 'without a name')), 'name', 'List them with list_alert_channels.');
  end if;
  return holdfast.submit_alert_notification(p_name, '[]', 0);
end $$;

-- Return whether a notification has waited for longer than p_age_s: no worker serves the queue `alerts`.
create or replace function holdfast.has_late_alert_notifications(p_age_s double precision default 30) returns boolean
language plpgsql stable security definer set search_path = '' set jit = off as $$
declare
  v_before timestamptz := holdfast.now() - p_age_s * interval '1 second';
  v_lanes bigint[] := array(select l.id from holdfast.lanes l where l.queue = 'alerts');
begin
  return v_lanes <> '{}' and (
    exists (select from unnest(v_lanes) as l (id) cross join lateral (
      select t.due_at from holdfast.tasks t where t.lane_id = l.id and t.status = 'ready' order by t.pos limit 1) as t
      where t.due_at <= v_before)
    or exists (select from (select t.lane_id from holdfast.tasks t where t.status = 'scheduled' and t.due_at <= v_before
      order by t.due_at limit 1000) as t where t.lane_id = any (v_lanes))
    or exists (select from (select t.lane_id from holdfast.tasks t where t.status = 'running'
      and t.lease_until <= v_before order by t.lease_until limit 1000) as t where t.lane_id = any (v_lanes)));
end $$;

call holdfast.grant_execute('holdfast_worker', 'list_alert_channels', 'find_alert_channel_target',
  'record_alert_delivery', 'has_late_alert_notifications');
call holdfast.grant_execute('service_role', 'put_alert_channel', 'list_alert_channels', 'set_alert_channel_enabled',
  'delete_alert_channel', 'find_alert_channel_target', 'record_alert_delivery', 'test_alert_channel',
  'has_late_alert_notifications');
