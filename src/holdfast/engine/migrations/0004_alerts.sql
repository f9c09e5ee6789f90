-- Alerts: rules, the problems that they found, silences, and the channels that are notified.

-- What is watched. A rule fires for each subject (a queue, a task type, a schedule) whose value is above `threshold`
-- for `for_s` seconds, and ends when the value has been at most `clear_below` for `clear_after_s` seconds.
create table holdfast.alert_rules (
  name text primary key check (octet_length(name) between 1 and 200),
  kind text not null check (kind in ('queue_age', 'no_worker', 'failure_rate', 'failed_jobs', 'dead_letters',
    'lost_workers', 'schedule_missed', 'storage', 'old_snapshot', 'queue_paused', 'webhook_failing', 'bulk_stopped')),
  subject text,                              -- null: all; `mail-*` matches every name that starts with mail-
  severity text not null default 'warning' check (severity in ('critical', 'warning', 'info')),
  threshold double precision not null,
  clear_below double precision not null check (clear_below <= threshold),
  for_s double precision not null default 0,
  clear_after_s double precision not null default 60,
  window_s double precision not null default 900, -- for rates and counts: the time that is looked at
  min_count integer not null default 1,      -- for rates: the minimum number of tasks that ended in the window
  repeat_s double precision,                 -- null: no reminders
  channels text[],                           -- null: all channels, or none for the severity info
  enabled boolean not null default true,
  last_error text,                           -- why the last evaluation failed
  created_at timestamptz not null,
  changed_at timestamptz not null
);
comment on table holdfast.alert_rules is 'what is watched: a kind of problem, its threshold and its severity';

-- A row per problem. An alert that never fired has no row after its value went down.
create table holdfast.alerts (
  id uuid primary key,
  rule text not null,
  kind text not null,
  subject text not null,
  severity text not null,
  status text not null check (status in ('pending', 'firing', 'resolved')),
  value double precision,
  size bigint not null default 0,            -- how many tasks, messages or workers are affected
  detail jsonb not null default '{}',
  started_at timestamptz not null,
  fired_at timestamptz,
  seen_at timestamptz not null,              -- when it was evaluated last
  clear_since timestamptz,                   -- the value has been low since then
  notified_at timestamptz,
  resolved_at timestamptz,
  acknowledged_at timestamptz,
  acknowledged_by text,
  note text
) with (fillfactor = 50);
create unique index alerts_open on holdfast.alerts (rule, subject) where status <> 'resolved';
create index alerts_resolved on holdfast.alerts (resolved_at desc) where status = 'resolved';
comment on table holdfast.alerts is 'problems that alert rules found, open and resolved';

-- While a silence lasts, its alerts are shown and nobody is notified.
create table holdfast.alert_silences (
  id uuid primary key,
  rule text,                                 -- null: every rule
  subject text,                              -- null: every subject
  until timestamptz not null,
  created_by text not null,
  reason text,
  created_at timestamptz not null
);
comment on table holdfast.alert_silences is 'times without notifications, for a rule, a subject or everything';

-- Where notifications are sent.
create table holdfast.alert_channels (
  name text primary key check (octet_length(name) between 1 and 200),
  kind text not null check (kind in ('webhook', 'slack', 'email')),
  target text not null check (octet_length(target) between 3 and 2000), -- a URL, or e-mail addresses
  secret text,                               -- signs the requests of a webhook
  enabled boolean not null default true,
  created_at timestamptz not null,
  sent_at timestamptz,                       -- the last notification that was delivered
  failing_since timestamptz,
  failures integer not null default 0,
  last_error text
);
comment on table holdfast.alert_channels is 'where notifications of alerts are sent: webhooks, Slack, e-mail';

-- When alerts were evaluated last, in seconds since 1970. In a sequence, so that others see it before the commit.
create sequence holdfast.last_alert_evaluation_s as bigint minvalue 0 start 0;

insert into holdfast.alert_rules (name, kind, severity, threshold, clear_below, window_s, min_count, clear_after_s,
  created_at, changed_at)
select r.name, r.kind, r.severity, r.threshold, r.clear_below, r.window_s, r.min_count, r.clear_after_s,
  pg_catalog.clock_timestamp(), pg_catalog.clock_timestamp()
from (values
  ('no-worker', 'no_worker', 'critical', 60, 0, 900, 1, 60),
  ('failure-rate', 'failure_rate', 'critical', 0.25, 0.1, 900, 20, 300),
  ('queue-age', 'queue_age', 'warning', 600, 300, 900, 1, 60),
  ('dead-letters', 'dead_letters', 'warning', 0, 0, 3600, 1, 60),
  ('lost-workers', 'lost_workers', 'warning', 0, 0, 1800, 1, 60),
  ('schedule-missed', 'schedule_missed', 'warning', 120, 0, 900, 1, 60),
  ('old-snapshot', 'old_snapshot', 'warning', 900, 600, 900, 1, 60),
  ('storage', 'storage', 'warning', 107374182400, 96636764160, 900, 1, 300),
  ('failed-jobs', 'failed_jobs', 'info', 0, 0, 3600, 1, 60),
  ('paused-queue', 'queue_paused', 'info', 0, 0, 900, 1, 0),
  ('failing-webhook', 'webhook_failing', 'info', 0, 0, 900, 1, 0),
  ('stopped-bulk-action', 'bulk_stopped', 'info', 0, 0, 86400, 1, 0)
) as r (name, kind, severity, threshold, clear_below, window_s, min_count, clear_after_s);

do $$
declare
  v_table text;
begin
  foreach v_table in array '{alert_rules,alerts,alert_silences,alert_channels}'::text[] loop
    execute format('alter table holdfast.%I enable row level security', v_table);
    execute format('alter table holdfast.%I force row level security', v_table);
    execute format('create policy owner_all on holdfast.%I to current_user using (true) with check (true)', v_table);
    execute format('revoke all on holdfast.%I from public', v_table);
  end loop;
end $$;
