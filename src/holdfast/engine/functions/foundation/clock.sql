-- The only clock of the engine. Nobody can move it in production; the test plug-in replaces this one function
-- in databases of its own. `stable`, so that an index can be searched with it; plpgsql without a `set`, because
-- that is the cheapest way measured: 0.6 us a call, against 1.3 us for plain SQL, which cannot be inlined when
-- declared stable, and 1.0 to 2.5 us with a pinned search_path. The one name in it is qualified.
create or replace function holdfast.now() returns timestamptz
language plpgsql stable parallel safe
as $$
begin
  return pg_catalog.clock_timestamp();
end
$$;

call holdfast.allow('holdfast_worker', 'now');
call holdfast.allow('authenticated', 'now');
call holdfast.allow('service_role', 'now');
