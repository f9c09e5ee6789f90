-- Evaluation of alert rules: at most once per interval over all workers and API processes.
--
-- An alert is one subject of one rule. It is pending while its value is high for less than the `for_s` of the rule,
-- then it fires, and it is resolved when the value was low for `clear_after_s`. Between `clear_below` and `threshold`
-- it stays what it is, so that a value around the threshold does not fire again and again. Changes of one evaluation
-- are sent to each channel as one job: when all workers die, a hundred queues are one message.

-- Evaluate all rules, unless they were evaluated less than p_interval_s ago. Return the number of alerts that started
-- to fire or were resolved, or null if nothing was evaluated. A rule that fails does not stop the others.
create or replace function holdfast.evaluate_alerts(p_interval_s double precision default 30) returns integer
language plpgsql security definer set search_path = '' set jit = off as $$
declare
  v_now timestamptz := holdfast.now();
  v_rule holdfast.alert_rules;
  v_queues jsonb;
  v_events jsonb := '[]';
begin
  if not holdfast.is_alert_evaluation_due(p_interval_s, v_now)
    or not pg_try_advisory_xact_lock(hashtext('holdfast'), hashtext('alerts'))
    or not holdfast.is_alert_evaluation_due(p_interval_s, v_now) then -- another caller was faster
    return null;
  end if;
  perform setval('holdfast.last_alert_evaluation_s', floor(extract(epoch from v_now))::bigint);
  if not exists (select from holdfast.alert_rules r where r.enabled) then
    return 0;
  end if;
  perform holdfast.record_throughput_samples(v_now);
  v_queues := (select coalesce(jsonb_agg(q), '[]') from holdfast.list_task_queues(null, 10000) as q);
  for v_rule in select * from holdfast.alert_rules r where r.enabled
    order by r.kind <> 'no_worker', r.name -- queue_age reads the alerts of no_worker
  loop
    begin
      v_events := v_events || holdfast.evaluate_alert_rule(v_rule, v_queues, v_now);
      if v_rule.last_error is not null then
        update holdfast.alert_rules r set last_error = null where r.name = v_rule.name;
        delete from holdfast.maintenance_problems p where p.kind = 'alert rule' and p.subject = v_rule.name;
      end if;
    exception when others then
      if sqlstate like '40%' then -- a conflict with another transaction: the next evaluation is the repetition
        raise;
      end if;
      update holdfast.alert_rules r set last_error = holdfast.truncate_middle(sqlerrm, 500)
        where r.name = v_rule.name;
      perform holdfast.record_maintenance_problem('alert rule', v_rule.name, sqlerrm, v_now);
    end;
  end loop;
  perform holdfast.enqueue_alert_notifications(v_events, v_now);
  return (select count(*) from jsonb_array_elements(v_events) as e where e ->> 'event' <> 'reminder');
end $$;

-- Return whether the last evaluation is p_interval_s or longer ago. A clock that was set back makes it due.
create or replace function holdfast.is_alert_evaluation_due(p_interval_s double precision, p_now timestamptz)
  returns boolean
language plpgsql volatile set search_path = '' as $$
declare
  v_now_s double precision := extract(epoch from p_now);
begin
  return not (select e.last_value > v_now_s - p_interval_s and e.last_value <= v_now_s
    from holdfast.last_alert_evaluation_s e);
end $$;

-- Evaluate one rule, and return the events to notify of: [{event, channels, alert}].
create or replace function holdfast.evaluate_alert_rule(p_rule holdfast.alert_rules, p_queues jsonb, p_now timestamptz)
  returns jsonb
language plpgsql set search_path = '' set jit = off as $$
declare
  v_max_open constant integer := 200; -- alerts of one rule
  v_open integer := (select count(*) from holdfast.alerts a where a.rule = p_rule.name and a.status <> 'resolved');
  v_row record;
  v_alert holdfast.alerts;
  v_event text;
  v_events jsonb := '[]';
begin
  for v_row in
    select coalesce(o.subject, a.subject) as subject, a.id is not null as is_open, o.value, o.size, o.detail,
      coalesce(o.is_bad, o.value > p_rule.threshold, false) as is_high,
      coalesce(not o.is_bad, o.value <= p_rule.clear_below, true) as is_low
    from holdfast.observe_alert_rule(p_rule, p_queues, p_now) as o
    full join (select b.id, b.subject from holdfast.alerts b
      where b.rule = p_rule.name and b.status <> 'resolved') as a on a.subject = o.subject
    where a.id is not null or coalesce(o.is_bad, o.value > p_rule.threshold)
    order by o.size desc nulls last, 1
  loop
    if v_row.is_open then
      select * into v_alert from holdfast.alerts a
      where a.rule = p_rule.name and a.subject = v_row.subject and a.status <> 'resolved' for update;
    else
      continue when v_open >= v_max_open;
      v_open := v_open + 1;
      v_alert := null;
      v_alert.id := holdfast.new_id();
      v_alert.started_at := p_now;
      v_alert.status := 'pending';
    end if;
    v_alert.rule := p_rule.name;
    v_alert.kind := p_rule.kind;
    v_alert.subject := v_row.subject;
    v_alert.severity := p_rule.severity;
    v_alert.value := coalesce(v_row.value, v_alert.value);
    v_alert.size := coalesce(v_row.size, v_alert.size, 0);
    v_alert.detail := coalesce(v_row.detail, v_alert.detail, '{}');
    v_alert.seen_at := p_now;
    v_alert := holdfast.advance_alert(v_alert, p_rule, v_row.is_high, v_row.is_low, p_now);
    v_event := holdfast.choose_alert_event(v_alert, p_rule, p_now);
    if v_event is not null then
      v_alert.notified_at := p_now;
      v_events := v_events || jsonb_build_object('event', v_event, 'alert', holdfast.alert_to_json(v_alert, p_now));
    end if;
    perform holdfast.store_alert(v_alert, v_row.is_open);
  end loop;
  return (select coalesce(jsonb_agg(e || jsonb_build_object('channels', p_rule.channels)), '[]')
    from jsonb_array_elements(v_events) as e);
end $$;

-- Return the alert in its next state. A pending alert whose value went down gets the status null: it never fired.
create or replace function holdfast.advance_alert(p_alert holdfast.alerts, p_rule holdfast.alert_rules,
  p_is_high boolean, p_is_low boolean, p_now timestamptz) returns holdfast.alerts
language plpgsql immutable set search_path = '' as $$
begin
  if p_alert.status = 'pending' then
    if not p_is_high then
      p_alert.status := null;
    elsif p_now - p_alert.started_at >= p_rule.for_s * interval '1 second' then
      p_alert.status := 'firing';
      p_alert.fired_at := p_now;
    end if;
    return p_alert;
  end if;
  p_alert.clear_since := case when p_is_low then coalesce(p_alert.clear_since, p_now) end;
  if p_now - p_alert.clear_since >= p_rule.clear_after_s * interval '1 second' then
    p_alert.status := 'resolved';
    p_alert.resolved_at := p_now;
  end if;
  return p_alert;
end $$;

-- Return what to notify of: `firing` once, `reminder` after the repeat_s of the rule, `resolved` after a notification.
-- Silenced alerts do not notify while they fire. Acknowledged ones send no reminders.
create or replace function holdfast.choose_alert_event(p_alert holdfast.alerts, p_rule holdfast.alert_rules,
  p_now timestamptz) returns text
language plpgsql stable set search_path = '' as $$
begin
  return case
    when p_alert.status = 'resolved' then case when p_alert.notified_at is not null then 'resolved' end
    when p_alert.status is distinct from 'firing' or p_alert.acknowledged_at is not null
      or holdfast.find_alert_silence_end(p_alert.rule, p_alert.subject, p_now) is not null then null
    when p_alert.notified_at is null then 'firing'
    when p_now - p_alert.notified_at >= p_rule.repeat_s * interval '1 second' then 'reminder' end;
end $$;

-- Write an alert. A status of null deletes it.
create or replace function holdfast.store_alert(p_alert holdfast.alerts, p_exists boolean) returns void
language plpgsql set search_path = '' as $$
begin
  if p_alert.status is null then
    delete from holdfast.alerts a where a.id = p_alert.id;
  elsif p_exists then
    update holdfast.alerts a set kind = p_alert.kind, severity = p_alert.severity, status = p_alert.status,
      value = p_alert.value, size = p_alert.size, detail = p_alert.detail, fired_at = p_alert.fired_at,
      seen_at = p_alert.seen_at, clear_since = p_alert.clear_since, notified_at = p_alert.notified_at,
      resolved_at = p_alert.resolved_at
    where a.id = p_alert.id;
  else
    insert into holdfast.alerts select p_alert.*;
  end if;
end $$;

-- One round of maintenance: evaluate the rules, and delete what is old.
create or replace function holdfast.tick_alerts(p_limit integer default 1000) returns integer
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
begin
  delete from holdfast.alerts a where a.id in (
    select o.id from holdfast.alerts o where o.status = 'resolved' and o.resolved_at < v_now - interval '30 days'
    limit p_limit for update skip locked);
  delete from holdfast.alert_silences s where s.until < v_now - interval '30 days';
  return coalesce(holdfast.evaluate_alerts(), 0);
end $$;

call holdfast.grant_execute('holdfast_worker', 'evaluate_alerts', 'tick_alerts');
call holdfast.grant_execute('service_role', 'evaluate_alerts', 'tick_alerts');
