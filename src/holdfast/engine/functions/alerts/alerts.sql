-- Alerts as operators see them: list, acknowledge and silence them.

-- Return an alert as JSON.
create or replace function holdfast.alert_to_json(p_alert holdfast.alerts, p_now timestamptz) returns jsonb
language plpgsql stable set search_path = '' as $$
begin
  return to_jsonb(p_alert) - '{clear_since,notified_at}'::text[] || jsonb_build_object(
    'threshold', (select r.threshold from holdfast.alert_rules r where r.name = p_alert.rule),
    'silenced_until', case when p_alert.status <> 'resolved'
      then holdfast.find_alert_silence_end(p_alert.rule, p_alert.subject, p_now) end);
end $$;

-- Return the end of the longest silence of an alert, or null.
create or replace function holdfast.find_alert_silence_end(p_rule text, p_subject text, p_now timestamptz)
  returns timestamptz
language plpgsql stable set search_path = '' as $$
begin
  return (select max(s.until) from holdfast.alert_silences s where s.until > p_now
    and (s.rule is null or s.rule = p_rule) and (s.subject is null or s.subject = p_subject));
end $$;

-- List the alerts that fire, by severity and size: critical first, then those that affect most. With p_resolved, list
-- the resolved ones instead, newest first.
create or replace function holdfast.list_alerts(p_resolved boolean default false, p_limit integer default 100)
  returns setof jsonb
language plpgsql stable security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
begin
  return query
  select holdfast.alert_to_json(a, v_now) from holdfast.alerts a
  where a.status = case when p_resolved then 'resolved' else 'firing' end
  order by case when p_resolved then a.resolved_at end desc, array_position('{critical,warning,info}', a.severity),
    a.size desc, a.fired_at, a.id
  limit least(greatest(coalesce(p_limit, 100), 1), 1000);
end $$;

-- Return an alert as JSON, or raise HF002.
create or replace function holdfast.get_alert(p_id uuid) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
declare
  v_alert holdfast.alerts;
begin
  select * into v_alert from holdfast.alerts a where a.id = p_id;
  if not found then
    perform holdfast.raise_error('HF002', format('Alert %s does not exist.', p_id), 'id');
  end if;
  return holdfast.alert_to_json(v_alert, holdfast.now());
end $$;

-- Record that somebody takes care of an alert: no more reminders are sent. Return false when it is not firing.
create or replace function holdfast.acknowledge_alert(p_id uuid, p_by text default null, p_note text default null)
  returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  perform holdfast.get_alert(p_id), holdfast.check_text(nullif(p_note, ''), 'note', 1000);
  update holdfast.alerts a set acknowledged_at = holdfast.now(), acknowledged_by = left(coalesce(p_by, session_user), 200),
    note = nullif(p_note, '')
  where a.id = p_id and a.status = 'firing';
  return found;
end $$;

-- Send no notifications until p_until for a rule, a subject (such as a queue), a subject of a rule, or everything.
-- Return the id of the silence.
create or replace function holdfast.silence_alerts(p_until timestamptz, p_rule text default null,
  p_subject text default null, p_by text default null, p_reason text default null) returns uuid
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_id uuid := holdfast.new_id();
begin
  perform holdfast.check_text(p_rule, 'rule', 200), holdfast.check_text(p_subject, 'subject', 200),
    holdfast.check_text(nullif(p_reason, ''), 'reason', 1000);
  if p_until is null or p_until <= v_now or p_until > v_now + interval '366 days' then
    perform holdfast.raise_error('HF004', 'until must be in the future, and at most one year away.', 'until');
  end if;
  if p_rule is not null and not exists (select from holdfast.alert_rules r where r.name = p_rule) then
    perform holdfast.raise_error('HF002', format('Alert rule %s does not exist.', quote_literal(left(p_rule, 80))),
      'rule', 'List the rules with list_alert_rules.');
  end if;
  insert into holdfast.alert_silences (id, rule, subject, until, created_by, reason, created_at)
  values (v_id, p_rule, p_subject, p_until, left(coalesce(p_by, session_user), 200), nullif(p_reason, ''), v_now);
  return v_id;
end $$;

-- End a silence. Return false when it does not exist or has ended.
create or replace function holdfast.end_alert_silence(p_id uuid) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  update holdfast.alert_silences s set until = holdfast.now() where s.id = p_id and s.until > holdfast.now();
  return found;
end $$;

-- List the silences that have not ended, the first to end first.
create or replace function holdfast.list_alert_silences()
  returns table (id uuid, rule text, subject text, until timestamptz, created_by text, reason text,
    created_at timestamptz)
language plpgsql stable security definer set search_path = '' as $$
#variable_conflict use_column
begin
  return query select s.id, s.rule, s.subject, s.until, s.created_by, s.reason, s.created_at
  from holdfast.alert_silences s where s.until > holdfast.now() order by s.until limit 1000;
end $$;

call holdfast.grant_execute('holdfast_worker', 'list_alerts', 'get_alert', 'list_alert_silences');
call holdfast.grant_execute('service_role', 'list_alerts', 'get_alert', 'list_alert_silences', 'acknowledge_alert',
  'silence_alerts', 'end_alert_silence');
