-- An observer beside the engine: every change of a task's state, as the tables show it.
create schema campaign;
create table campaign.ledger (
  id bigint generated always as identity primary key,
  at timestamptz not null default clock_timestamp(),
  task uuid not null,
  was text,
  is_now text not null,
  attempt integer not null,
  nonce bigint,
  lease_until timestamptz

);
create function campaign.note_task() returns trigger language plpgsql security definer set search_path = '' as $$
begin
  if tg_op = 'INSERT' or old.status <> new.status or old.attempt <> new.attempt or old.nonce is distinct from new.nonce then
    insert into campaign.ledger (task, was, is_now, attempt, nonce, lease_until)
    values (new.id, case when tg_op = 'UPDATE' then old.status end, new.status, new.attempt, new.nonce, new.lease_until);
  end if;
  return null;
end $$;
create function campaign.note_history() returns trigger language plpgsql security definer set search_path = '' as $$
begin
  insert into campaign.ledger (task, was, is_now, attempt, nonce)
  values (new.id, 'history', new.status, new.attempt, new.nonce);
  return null;
end $$;
create trigger campaign_tasks after insert or update on holdfast.tasks for each row execute function campaign.note_task();
create trigger campaign_history after insert on holdfast.history for each row execute function campaign.note_history();
-- Effects that tasks write in their own transactions: one row per task, or somebody did it twice.
create table campaign.effects (task uuid not null, attempt integer not null, at timestamptz not null default clock_timestamp());
-- Edges go when their job is archived; the judge needs them all.
create table campaign.edges (parent_id uuid not null, child_id uuid not null);
create function campaign.note_edge() returns trigger language plpgsql security definer set search_path = '' as $$
begin
  insert into campaign.edges values (new.parent_id, new.child_id);
  return null;
end $$;
create trigger campaign_edges after insert on holdfast.edges for each row execute function campaign.note_edge();
