-- Saved views: searches that people store under a name.

-- Store a search under a name, or replace the one that p_by stored under it. Return its id.
create or replace function holdfast.put_saved_view(
  p_name text, p_page text, p_search text, p_by text, p_shared boolean default true) returns uuid
language plpgsql security definer set search_path = '' as $$
declare
  v_id uuid;
begin
  if (select count(*) from holdfast.saved_views v where v.saved_by = p_by) >= 100 then
    perform holdfast.raise_error('HF003', 'You have 100 saved views, which is the maximum.', 'name',
      'Delete one first.');
  end if;
  insert into holdfast.saved_views (id, name, page, search, saved_by, shared, created_at)
  values (holdfast.new_id(), holdfast.check_name(btrim(p_name), 'name'), p_page, left(p_search, 4000), p_by, p_shared,
    holdfast.now())
  on conflict (saved_by, page, name) do update set search = excluded.search, shared = excluded.shared
  returning id into v_id;
  return v_id;
end $$;

-- List the views of p_by, then the shared views of others.
create or replace function holdfast.list_saved_views(p_by text, p_page text default 'jobs') returns setof jsonb
language plpgsql stable security definer set search_path = '' as $$
begin
  return query select to_jsonb(v) || jsonb_build_object('own', v.saved_by = p_by) from holdfast.saved_views v
  where v.page = p_page and (v.shared or v.saved_by = p_by) order by v.saved_by <> p_by, v.name limit 200;
end $$;

-- Delete a saved view of p_by. Return false when it does not exist.
create or replace function holdfast.delete_saved_view(p_id uuid, p_by text) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  delete from holdfast.saved_views v where v.id = p_id and v.saved_by = p_by;
  return found;
end $$;

call holdfast.grant_execute('holdfast_worker', 'list_saved_views');
call holdfast.grant_execute('service_role', 'list_saved_views', 'put_saved_view', 'delete_saved_view');
