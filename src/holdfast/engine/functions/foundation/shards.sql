-- Shards: whole, independent databases with a number each, which clients route to. An id contains the number of the
-- database that created it.
--
-- The option `shard` is the number of this database (default 0), `shard_joined` orders shards by the time at which they
-- were added (shards that were there from the start have 0), and `shard_draining` is true if clients send no new work.

-- Return the number of the shard that created an id.
create or replace function holdfast.shard_of(p_id uuid) returns integer
language plpgsql immutable strict parallel safe set search_path = '' as $$
begin
  return ('x' || substr(p_id::text, 22, 2))::bit(8)::integer;
end $$;

-- Return this database as a shard: its number, when it joined, whether it is drained, and how much work is unfinished.
create or replace function holdfast.get_shard() returns jsonb
language plpgsql stable security definer set search_path = '' as $$
begin
  return (
  select jsonb_build_object(
    'number', coalesce((select value from holdfast.options where name = 'shard'), '0'),
    'joined', coalesce((select value from holdfast.options where name = 'shard_joined'), '0'),
    'draining', coalesce((select value from holdfast.options where name = 'shard_draining'), 'false')));
end $$;

-- Return whether this database has created ids, which contain its number.
create or replace function holdfast.has_created_ids() returns boolean
language plpgsql stable set search_path = '' as $$
begin
  return exists (select from holdfast.jobs) or exists (select from holdfast.tasks)
    or exists (select from holdfast.history) or exists (select from holdfast.batches);
end $$;

-- Return how many jobs and open batches of this shard have not ended, counted up to p_max_rows.
create or replace function holdfast.count_unfinished_work(p_max_rows integer default 10000) returns integer
language plpgsql stable security definer set search_path = '' as $$
begin
  return (
  select count(*) from (
    select from holdfast.tasks t where t.status not in ('succeeded', 'failed', 'cancelled', 'partial')
    union all
    select from holdfast.batches b where b.finished_at is null
    limit p_max_rows) as unfinished);
end $$;

-- Set the number of this database. It cannot change once an id contains it.
create or replace function holdfast.set_shard(p_number integer, p_joined integer default 0) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_current integer := (holdfast.get_shard() ->> 'number')::integer;
begin
  if p_number is null or p_number not between 0 and 255 then
    perform holdfast.raise_error('HF004', 'The number of a shard must be 0 to 255.', 'number');
  end if;
  perform pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext('holdfast.set_shard'));
  if p_number <> v_current and holdfast.has_created_ids() then
    perform holdfast.raise_error('HF003', pg_catalog.format(
      'This database is shard %s and has jobs, whose ids contain this number.', v_current), 'number',
      'Use a new database for another shard.');
  end if;
  insert into holdfast.options (name, value)
  values ('shard', to_jsonb(p_number)), ('shard_joined', to_jsonb(coalesce(p_joined, 0)))
  on conflict (name) do update set value = excluded.value;
  return holdfast.get_shard();
end $$;

-- Let clients send no new work to this shard, or send work again. What is here runs to its end.
create or replace function holdfast.set_shard_draining(p_draining boolean) returns jsonb
language plpgsql security definer set search_path = '' as $$
begin
  insert into holdfast.options (name, value) values ('shard_draining', to_jsonb(p_draining))
  on conflict (name) do update set value = excluded.value;
  return holdfast.get_shard();
end $$;

-- Return the job that holds an idempotency key or a unique key of an owner, or null. For keys from before a shard was
-- added, which belong to another shard now.
create or replace function holdfast.find_job_by_key(p_owner text, p_key text, p_unique_key text) returns uuid
language plpgsql stable security definer set search_path = '' as $$
begin
  return (
  select k.job_id from holdfast.idempotency_keys k
  where (k.scope = 'key:' || coalesce(p_owner, '') and k.key = p_key)
    or (k.scope in ('unique:' || coalesce(p_owner, ''), 'throttle:' || coalesce(p_owner, ''))
      and k.key = p_unique_key)
  limit 1);
end $$;

call holdfast.grant_execute('authenticated', 'shard_of');
call holdfast.grant_execute('service_role', 'shard_of', 'get_shard', 'count_unfinished_work', 'find_job_by_key');
call holdfast.grant_execute('holdfast_worker', 'shard_of', 'get_shard', 'count_unfinished_work', 'find_job_by_key');
