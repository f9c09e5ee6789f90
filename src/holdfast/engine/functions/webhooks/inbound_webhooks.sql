-- Inbound webhooks: endpoints through which other systems submit one type of job.

-- Create or replace an inbound webhook.
create or replace function holdfast.put_inbound_webhook(
  p_name text, p_type text, p_queue text, p_owner text, p_secret text) returns void
language plpgsql security definer set search_path = '' as $$
begin
  perform holdfast.validate_job_request(jsonb_build_object('type', p_type, 'queue', p_queue), p_owner, 'type'),
    holdfast.check_text(coalesce(p_secret, ''), 'secret', 1000);
  insert into holdfast.inbound_webhooks (name, job_type, queue, owner, secret, created_at)
  values (p_name, p_type, holdfast.check_name(p_queue, 'queue'), p_owner, p_secret, holdfast.now())
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

call holdfast.grant_execute('service_role', 'put_inbound_webhook', 'get_inbound_webhook', 'list_inbound_webhooks',
  'delete_inbound_webhook');
