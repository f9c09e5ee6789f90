-- Bells: "there is work in this queue", said in a transaction and passed on when it commits (functions/wake.sql). Nobody reads
-- the table: a row is there for the sake of its trigger and is deleted at once.

create unlogged table holdfast.bells (
  queue text not null,
  type text not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);

do $$
begin
  alter table holdfast.bells enable row level security;
  alter table holdfast.bells force row level security;
  create policy owner_all on holdfast.bells to current_user using (true) with check (true);
  revoke all on holdfast.bells from public;
end $$;
