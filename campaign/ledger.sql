-- An observer beside the engine: records every change of a task's status.
create schema campaign;
create table campaign.ledger (
  id bigint generated always as identity primary key,
  at timestamptz not null default clock_timestamp(),
  task uuid not null,
  previous_status text,
  status text not null,
  attempt integer not null,
  nonce bigint,
  lease_until timestamptz
);
create function campaign.record_task_change() returns trigger language plpgsql security definer set search_path = '' as $$
begin
  if tg_op = 'INSERT' or old.status <> new.status or old.attempt <> new.attempt or old.nonce is distinct from new.nonce then
    insert into campaign.ledger (task, previous_status, status, attempt, nonce, lease_until)
    values (new.id, case when tg_op = 'UPDATE' then old.status end, new.status, new.attempt, new.nonce, new.lease_until);
  end if;
  return null;
end $$;
create function campaign.record_history() returns trigger language plpgsql security definer set search_path = '' as $$
begin
  insert into campaign.ledger (task, previous_status, status, attempt, nonce)
  values (new.id, 'history', new.status, new.attempt, new.nonce);
  return null;
end $$;
create trigger campaign_tasks after insert or update on holdfast.tasks for each row execute function campaign.record_task_change();
create trigger campaign_history after insert on holdfast.history for each row execute function campaign.record_history();
-- Effects that tasks write in their own transactions. More than one row per task means a repeated effect.
create table campaign.effects (task uuid not null, attempt integer not null, at timestamptz not null default clock_timestamp());
-- The engine deletes edges when a job is archived; the checker needs all of them.
create table campaign.edges (parent_id uuid not null, child_id uuid not null);
create function campaign.record_edge() returns trigger language plpgsql security definer set search_path = '' as $$
begin
  insert into campaign.edges values (new.parent_id, new.child_id);
  return null;
end $$;
create trigger campaign_edges after insert on holdfast.dependencies for each row execute function campaign.record_edge();
