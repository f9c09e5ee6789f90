-- How files go: first the row says so, then the object is deleted, then the row.
--
-- SQL cannot delete objects. `tick_artifacts` dooms what is to go, in bounded steps; whoever has the store claims doomed
-- rows, deletes their objects and says so. Each step may be done twice, by any number of callers. An attempt that lost may
-- finish an upload very late; so the objects of lost attempts are deleted once more, a day later, before the row goes.

-- What is doomed is no longer counted. Called with rows that the caller has locked.
create or replace function holdfast.uncount(p_ids uuid[], p_now timestamptz) returns void
language plpgsql set search_path = '' as $$
declare
  v_one record;
begin
  for v_one in
    with freed as (
      update holdfast.artifacts f set counted = false where f.id = any (p_ids) and f.counted returning f.owner, f.size
    )
    select f.owner, sum(f.size)::bigint as bytes, count(*) as files from freed f group by f.owner order by f.owner
  loop
    perform holdfast.use_storage(v_one.owner, -v_one.bytes, -v_one.files, p_now);
  end loop;
end $$;

-- Files whose time is over, of one owner or of all.
create or replace function holdfast.expire_artifacts(p_owner text, p_now timestamptz, p_limit integer) returns integer
language plpgsql set search_path = '' set plan_cache_mode = force_custom_plan as $$
declare
  v_ids uuid[] := array(
    select f.id from holdfast.artifacts f
    where f.status = 'visible' and f.expires_at <= p_now and (p_owner is null or f.owner = p_owner)
    order by f.expires_at limit p_limit for update skip locked);
  v_one record;
begin
  for v_one in
    with gone as (
      -- Visible files of somebody are always counted.
      update holdfast.artifacts f set status = 'doomed', why = 'expired', touched_at = p_now, counted = false
      where f.id = any (v_ids) returning f.owner, f.size
    )
    select g.owner, sum(g.size)::bigint as bytes, count(*) as files from gone g where g.owner is not null group by g.owner order by g.owner
  loop
    perform holdfast.use_storage(v_one.owner, -v_one.bytes, -v_one.files, p_now);
  end loop;
  return cardinality(v_ids);
end $$;

-- A visible file is kept for so long from now on; null: for ever. Answers until when.
create or replace function holdfast.keep_artifact(p_id uuid, p_ttl_s double precision) returns timestamptz
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_until timestamptz;
begin
  if p_ttl_s <= 0 or p_ttl_s > 3.2e9 then
    perform holdfast.refuse('HF004', 'A file is kept for more than no time and less than a hundred years.', 'ttl_s');
  end if;
  update holdfast.artifacts f set expires_at = v_now + p_ttl_s * interval '1 second'
  where f.id = p_id and f.status = 'visible' and (f.expires_at is null or f.expires_at > v_now)
  returning f.expires_at into v_until;
  if not found then
    perform holdfast.refuse('HF002', 'There is no such file any more.', 'id');
  end if;
  return v_until;
end $$;

-- Files of attempts that are over without success (of steps: of tasks), and of uploads that nobody speaks for. Others are
-- looked at again later.
create or replace function holdfast.doom_lost_artifacts(p_now timestamptz, p_limit integer) returns integer
language plpgsql set search_path = '' as $$
declare
  v_lost uuid[];
begin
  with seen as materialized (
    select f.id, f.task_id, f.attempt, f.nonce, f.step, f.touched_at from holdfast.artifacts f
    where f.status in ('uploading', 'staged') and f.touched_at < p_now - interval '30 seconds'
    order by f.touched_at limit p_limit for update skip locked
  ), judged as (
    update holdfast.artifacts f set
      status = case when s.held then f.status else 'doomed' end, why = case when not s.held then 'lost' end,
      touched_at = case when s.waits then f.touched_at else p_now end
    from (
      select s.id, s.task_id is null as waits, case when s.task_id is null then s.touched_at > p_now - interval '15 minutes'
        when s.step is not null then exists (select from holdfast.tasks t where t.id = s.task_id
          and t.status || '' in ('waiting', 'scheduled', 'ready', 'running'))
        else exists (select from holdfast.tasks t where t.id = s.task_id and t.attempt = s.attempt and t.nonce = s.nonce
          and t.status || '' = 'running') end as held
      from seen s
    ) as s
    where f.id = s.id and not (s.waits and s.held)
    returning f.id, f.status
  )
  select array_agg(j.id) into v_lost from judged j where j.status = 'doomed';
  perform holdfast.uncount(v_lost, p_now);
  return coalesce(cardinality(v_lost), 0);
end $$;

-- One bounded round: {expired, lost, replaced, forgotten, doomed}; `doomed` says whether objects wait to be deleted.
create or replace function holdfast.tick_artifacts(p_limit integer default 1000) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_did jsonb := jsonb_build_object('expired', holdfast.expire_artifacts(null, v_now, p_limit),
    'lost', holdfast.doom_lost_artifacts(v_now, p_limit));
  v_ids uuid[] := array(
    select f.id from holdfast.artifacts f where f.status = 'doomed' and f.counted limit p_limit for update skip locked);
  v_count integer;
begin
  perform holdfast.uncount(v_ids, v_now);
  delete from holdfast.artifacts f where f.id = any (array(
    select o.id from holdfast.artifacts o where o.status = 'gone' and o.why <> 'lost' and o.touched_at < v_now - interval '30 days'
    order by o.touched_at limit p_limit for update skip locked));
  get diagnostics v_count = row_count;
  return v_did || jsonb_build_object('replaced', cardinality(v_ids), 'forgotten', v_count,
    'doomed', exists (select from holdfast.artifacts f where f.status = 'doomed' and f.touched_at <= v_now));
end $$;

-- Objects to delete. Nobody else is given them for five minutes; then they are given out again, unless they were forgotten.
create or replace function holdfast.claim_doomed(p_limit integer default 1000) returns table (id uuid, key text)
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_column
declare
  v_now timestamptz := holdfast.now();
begin
  return query
  update holdfast.artifacts f set touched_at = case f.status when 'doomed' then v_now + interval '5 minutes'
    else v_now - interval '1 day' + interval '5 minutes' end
  where f.id = any (array(
      select d.id from holdfast.artifacts d where d.status = 'doomed' and d.touched_at <= v_now
      order by d.touched_at limit p_limit for update skip locked)
    || array(
      select g.id from holdfast.artifacts g where g.status = 'gone' and g.why = 'lost' and g.touched_at <= v_now - interval '1 day'
      order by g.touched_at limit p_limit for update skip locked))
  returning f.id, f.key;
end $$;

-- Their objects are deleted.
create or replace function holdfast.forget_doomed(p_ids uuid[]) returns integer
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_count integer;
begin
  perform from holdfast.artifacts f where f.id = any (p_ids) order by f.id for update;
  delete from holdfast.artifacts f where f.id = any (p_ids) and f.status = 'gone' and f.why = 'lost';
  update holdfast.artifacts f set status = 'gone', touched_at = v_now where f.id = any (p_ids) and f.status = 'doomed';
  get diagnostics v_count = row_count;
  perform holdfast.uncount(p_ids, v_now);
  return v_count;
end $$;

-- Which of these keys no row speaks of: objects that somebody else, or nobody, put into the store.
create or replace function holdfast.unknown_keys(p_keys text[]) returns setof text
language plpgsql stable security definer set search_path = '' as $$
begin
  return query select k from unnest(p_keys) as k where not exists (select from holdfast.artifacts f where f.key = k);
end $$;

call holdfast.allow('holdfast_worker', 'tick_artifacts', 'claim_doomed', 'forget_doomed', 'unknown_keys');
call holdfast.allow('service_role', 'keep_artifact', 'tick_artifacts', 'claim_doomed', 'forget_doomed', 'unknown_keys');
