-- Deliveries of outbound webhooks: the functions that end jobs and batches enqueue tasks of type `holdfast.webhook`, in
-- the same transaction. They are retried as any other task.
--
-- Without webhooks a job pays one look at an empty table. There are no triggers: to create or drop them with the first
-- or last webhook would lock the tables of all jobs.

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
-- one by one, so that the end of the job is not refused.
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

-- Enqueue webhook deliveries for jobs of one task that ended. The tasks are in the history.
create or replace function holdfast.enqueue_webhooks_for_tasks(p_ids uuid[]) returns void
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan as $$
begin
  perform holdfast.enqueue_deliveries_of_event('job.' || h.status, k.type, h.owner, jsonb_build_object('id', h.id,
    'type', k.type, 'status', h.status, 'owner', h.owner, 'finished_at', h.finished_at))
  from holdfast.history h join holdfast.task_policies k on k.id = h.policy_id
  where h.id = any (p_ids) and h.job_id is null;
end $$;

-- Enqueue webhook deliveries for a job of several tasks that ended.
create or replace function holdfast.enqueue_webhooks_for_job(p_job holdfast.jobs) returns void
language plpgsql set search_path = '' as $$
begin
  if exists (select from holdfast.webhooks) then
    perform holdfast.enqueue_deliveries_of_event('job.' || p_job.status, p_job.type, p_job.owner, jsonb_build_object(
      'id', p_job.id, 'type', p_job.type, 'status', p_job.status, 'owner', p_job.owner,
      'finished_at', p_job.finished_at));
  end if;
end $$;

-- Enqueue webhook deliveries for a batch that completed.
create or replace function holdfast.enqueue_webhooks_for_batch(p_batch holdfast.batches) returns void
language plpgsql set search_path = '' as $$
begin
  if exists (select from holdfast.webhooks) then
    perform holdfast.enqueue_deliveries_of_event('batch.completed', null, p_batch.owner, jsonb_build_object(
      'id', p_batch.id, 'name', p_batch.name, 'owner', p_batch.owner, 'total', p_batch.total, 'failed', p_batch.failed,
      'finished_at', p_batch.finished_at));
  end if;
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
