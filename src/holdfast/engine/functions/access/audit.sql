-- The audit log: actions of operators, recorded in the transaction that performs them. Entries are kept for 400 days.

-- Add an entry to the audit log. A detail of more than 16 KiB is left out.
create or replace function holdfast.record_audit_entry(p_actor text, p_action text, p_target text default null,
  p_detail jsonb default null)
returns void
language plpgsql security definer set search_path = '' as $$
begin
  insert into holdfast.audit_log (at, actor, action, target, detail)
  values (holdfast.now(), left(coalesce(p_actor, session_user), 200), holdfast.check_name(p_action, 'action'),
    left(p_target, 500),
    case when pg_column_size(p_detail) <= 16384 then p_detail end);
end $$;

-- List audit entries, newest first. p_before is the last id of the previous page.
create or replace function holdfast.list_audit_entries(p_before bigint default null, p_limit integer default 50)
returns table (id bigint, at timestamptz, actor text, action text, target text, detail jsonb)
language plpgsql stable security definer set search_path = '' as $$
begin
  return query
  select a.id, a.at, a.actor, a.action, a.target, a.detail from holdfast.audit_log a
  where p_before is null or a.id < p_before
  order by a.id desc limit least(greatest(coalesce(p_limit, 50), 1), 1000);
end $$;

-- List the changes of one object, newest first: entries with this target whose action starts with the noun, such as
-- `limit` for limit.put and limit.delete.
create or replace function holdfast.list_audit_entries_of_target(p_noun text, p_target text, p_limit integer default 20)
returns table (id bigint, at timestamptz, actor text, action text, target text, detail jsonb)
language plpgsql stable security definer set search_path = '' as $$
begin
  return query
  select a.id, a.at, a.actor, a.action, a.target, a.detail from holdfast.audit_log a
  where a.target = p_target and starts_with(a.action, p_noun || '.')
  order by a.id desc limit least(greatest(coalesce(p_limit, 20), 1), 1000);
end $$;

call holdfast.grant_execute('service_role', 'record_audit_entry', 'list_audit_entries',
  'list_audit_entries_of_target');
