-- Alert rules: what is watched, from which value on it is a problem, and who is notified.

-- Create or replace an alert rule. p_threshold is in the unit of the kind: seconds (queue_age, no_worker,
-- schedule_missed, old_snapshot, queue_paused), a share from 0 to 1 (failure_rate), bytes (storage) or a number.
-- A subject of the rule is a problem when its value is above p_threshold for p_for_s seconds; the problem ends when
-- the value is at most p_clear_below (default: p_threshold) for p_clear_after_s seconds.
create or replace function holdfast.put_alert_rule(
  p_name text, p_kind text, p_threshold double precision, p_clear_below double precision default null,
  p_subject text default null, p_severity text default 'warning', p_for_s double precision default 0,
  p_clear_after_s double precision default 60, p_window_s double precision default 900, p_min_count integer default 1,
  p_repeat_s double precision default null, p_channels text[] default null, p_enabled boolean default true)
  returns void
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_old holdfast.alert_rules;
begin
  perform holdfast.validate_alert_rule(p_name, p_kind, p_threshold, p_clear_below, p_subject, p_severity, p_for_s,
    p_clear_after_s, p_window_s, p_min_count, p_repeat_s, p_channels);
  select * into v_old from holdfast.alert_rules r where r.name = p_name for update;
  insert into holdfast.alert_rules (name, kind, subject, severity, threshold, clear_below, for_s, clear_after_s,
    window_s, min_count, repeat_s, channels, enabled, created_at, changed_at)
  values (p_name, p_kind, p_subject, p_severity, p_threshold, coalesce(p_clear_below, p_threshold), p_for_s,
    p_clear_after_s, p_window_s, p_min_count, p_repeat_s, p_channels, coalesce(p_enabled, true), v_now, v_now)
  on conflict (name) do update set kind = excluded.kind, subject = excluded.subject, severity = excluded.severity,
    threshold = excluded.threshold, clear_below = excluded.clear_below, for_s = excluded.for_s,
    clear_after_s = excluded.clear_after_s, window_s = excluded.window_s, min_count = excluded.min_count,
    repeat_s = excluded.repeat_s, channels = excluded.channels, enabled = excluded.enabled, last_error = null,
    changed_at = excluded.changed_at;
  delete from holdfast.maintenance_problems p where p.kind = 'alert rule' and p.subject = p_name;
  if not coalesce(p_enabled, true) or v_old.kind is distinct from p_kind then
    perform holdfast.close_alerts_of_rule(p_name, v_now);
  end if;
  perform setval('holdfast.last_alert_evaluation_s', 0); -- evaluate at the next call
end $$;

-- Raise HF004 for an alert rule that could not be evaluated.
create or replace function holdfast.validate_alert_rule(
  p_name text, p_kind text, p_threshold double precision, p_clear_below double precision, p_subject text,
  p_severity text, p_for_s double precision, p_clear_after_s double precision, p_window_s double precision,
  p_min_count integer, p_repeat_s double precision, p_channels text[]) returns void
language plpgsql stable set search_path = '' as $$
declare
  v_kinds constant text[] := '{queue_age,no_worker,failure_rate,failed_jobs,dead_letters,lost_workers,schedule_missed,
    storage,old_snapshot,queue_paused,webhook_failing,bulk_stopped}';
  v_max_s constant double precision := 31536000; -- one year
  v_channel text;
begin
  perform holdfast.check_name(p_name, 'name'), holdfast.check_text(p_subject, 'subject', 200);
  if p_kind is null or p_kind <> all (v_kinds) then
    perform holdfast.raise_error('HF004', format('Kind %s does not exist.', quote_nullable(left(p_kind, 60))), 'kind',
      format('Choose from %s.', array_to_string(v_kinds, ', ')));
  end if;
  if p_severity is null or p_severity not in ('critical', 'warning', 'info') then
    perform holdfast.raise_error('HF004', format('severity must be critical, warning or info, got %s.',
      quote_nullable(left(p_severity, 60))), 'severity');
  end if;
  if p_threshold is null then
    perform holdfast.raise_error('HF004', 'A rule needs a threshold.', 'threshold');
  end if;
  perform holdfast.check_number(p_threshold, 'threshold', 0, case p_kind when 'failure_rate' then 1 else 1e15 end),
    holdfast.check_number(p_clear_below, 'clear_below', 0, p_threshold),
    holdfast.check_number(coalesce(p_for_s, -1), 'for_s', 0, v_max_s),
    holdfast.check_number(coalesce(p_clear_after_s, -1), 'clear_after_s', 0, v_max_s),
    holdfast.check_number(coalesce(p_window_s, -1), 'window_s', 60, 86400),
    holdfast.check_number(coalesce(p_min_count, -1), 'min_count', 1, 1000000),
    holdfast.check_number(p_repeat_s, 'repeat_s', 60, v_max_s);
  if coalesce(cardinality(p_channels), 0) > 20 then
    perform holdfast.raise_error('HF004', 'A rule has at most 20 channels.', 'channels');
  end if;
  foreach v_channel in array coalesce(p_channels, '{}') loop
    if v_channel is null or not exists (select from holdfast.alert_channels c where c.name = v_channel) then
      perform holdfast.raise_error('HF004', format('Channel %s does not exist.', quote_nullable(left(v_channel, 60))),
        'channels', 'Create it first with put_alert_channel, or leave channels out to notify all.');
    end if;
  end loop;
end $$;

-- Enable or disable a rule. Disabling it ends its alerts. Return false when it does not exist.
create or replace function holdfast.set_alert_rule_enabled(p_name text, p_enabled boolean) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  update holdfast.alert_rules r set enabled = p_enabled, changed_at = holdfast.now(), last_error = null
    where r.name = p_name;
  if not found then
    return false;
  end if;
  if not p_enabled then
    perform holdfast.close_alerts_of_rule(p_name, holdfast.now());
  end if;
  delete from holdfast.maintenance_problems p where p.kind = 'alert rule' and p.subject = p_name;
  return true;
end $$;

-- Delete a rule and end its alerts. Return false when it does not exist.
create or replace function holdfast.delete_alert_rule(p_name text) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  delete from holdfast.alert_rules r where r.name = p_name;
  if not found then
    return false;
  end if;
  perform holdfast.close_alerts_of_rule(p_name, holdfast.now());
  delete from holdfast.maintenance_problems p where p.kind = 'alert rule' and p.subject = p_name;
  return true;
end $$;

-- End the open alerts of a rule that is not evaluated any more. Nobody is notified: the problem may still be there.
create or replace function holdfast.close_alerts_of_rule(p_name text, p_now timestamptz) returns void
language plpgsql set search_path = '' as $$
begin
  delete from holdfast.alerts a where a.rule = p_name and a.status = 'pending';
  update holdfast.alerts a set status = 'resolved', resolved_at = p_now where a.rule = p_name and a.status = 'firing';
end $$;

-- List alert rules by name, with the number of their alerts that fire.
create or replace function holdfast.list_alert_rules() returns setof jsonb
language plpgsql stable security definer set search_path = '' as $$
begin
  return query
  select to_jsonb(r) || jsonb_build_object('firing', (
    select count(*) from holdfast.alerts a where a.rule = r.name and a.status = 'firing'))
  from holdfast.alert_rules r order by r.name limit 1000;
end $$;

call holdfast.grant_execute('holdfast_worker', 'list_alert_rules');
call holdfast.grant_execute('service_role', 'put_alert_rule', 'set_alert_rule_enabled', 'delete_alert_rule',
  'list_alert_rules');
