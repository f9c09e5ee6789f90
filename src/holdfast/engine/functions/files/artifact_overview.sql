-- Files as a dashboard lists them.

-- Return a page of files, newest first, with the usage of the largest owners and the files that expire within a day.
create or replace function holdfast.get_files_overview(
  p_owner text, p_before uuid, p_limit integer default 50) returns jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
begin
  return jsonb_build_object(
    'files', (select coalesce(jsonb_agg(to_jsonb(f) - '{key,nonce}'::text[] order by f.id desc), '[]') from (
      select * from holdfast.artifacts f where f.status = 'visible' and (p_owner is null or f.owner = p_owner)
        and f.id < coalesce(p_before, 'ffffffff-ffff-ffff-ffff-ffffffffffff') order by f.id desc
          limit least(greatest(p_limit, 1), 500)) as f),
    'usage', (select coalesce(jsonb_agg(to_jsonb(u) || jsonb_build_object('limit', q.bytes) order by u.bytes desc),
      '[]') from (
      select * from holdfast.usage u where p_owner is null or u.owner = p_owner order by u.bytes desc limit 20) as u
      left join lateral holdfast.get_effective_quota(u.owner) as q on true),
    'expiring', (select jsonb_build_object('files', count(*), 'bytes', coalesce(sum(f.size), 0)) from (
      select f.size from holdfast.artifacts f where f.status = 'visible' and f.expires_at < holdfast.now(
        ) + interval '1 day'
        and (p_owner is null or f.owner = p_owner) limit 10000) as f),
    'deleting', (select count(*) from (select from holdfast.artifacts f where f.status = 'deleting' limit 10000) as f));
end $$;

call holdfast.grant_execute('holdfast_worker', 'get_files_overview');
call holdfast.grant_execute('service_role', 'get_files_overview');
