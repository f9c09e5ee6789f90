-- Row security for every table of the schema: enabled and forced, with one policy for the owner, as which the
-- functions run. Later migrations do the same for the tables they create. Rights of other roles are granted at the
-- end of the files in functions/, because the roles may not exist on this server.
do $$
declare
  v_table text;
begin
  for v_table in
    select c.relname from pg_catalog.pg_class c
    where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p')
      and pg_catalog.pg_get_userbyid(c.relowner) = current_user
  loop
    execute format('alter table holdfast.%I enable row level security', v_table);
    execute format('alter table holdfast.%I force row level security', v_table);
    execute format('create policy owner_all on holdfast.%I to current_user using (true) with check (true)', v_table);
    execute format('revoke all on holdfast.%I from public', v_table);
  end loop;
end $$;
