-- Charts by worker and by owner. Beside the samples by queue and task type, each minute keeps the most active names of
-- both kinds; the rest is added up under the empty name, so that the totals are right.
create table holdfast.activity_samples (
  span_s integer not null check (span_s in (60, 900)),
  kind text not null check (kind in ('worker', 'owner')),
  at timestamptz not null,
  name text not null,                        -- empty: all names that are not among the most active ones
  succeeded bigint not null default 0,
  failed bigint not null default 0,
  cancelled bigint not null default 0,
  run_s double precision not null default 0, -- the sum of the run times
  primary key (span_s, kind, at, name)
);
-- An erasure deletes the samples of one owner.
create index activity_samples_name on holdfast.activity_samples (kind, name) where name <> '';
comment on table holdfast.activity_samples is
  'ended tasks per minute and per quarter of an hour of the most active workers and owners';

alter table holdfast.activity_samples enable row level security;
alter table holdfast.activity_samples force row level security;
create policy owner_all on holdfast.activity_samples to current_user using (true) with check (true);
revoke all on holdfast.activity_samples from public;
