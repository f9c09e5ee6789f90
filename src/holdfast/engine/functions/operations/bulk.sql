-- Bulk: one action on many jobs, as a row that can be watched, paused, stopped and undone.
--
-- Which jobs is decided once, at the start, and written down: what comes to fit later is left alone. A retry goes in
-- waves: the first ten, then a hundred, then the rest; the next wave waits until the one before has ended (or ten
-- minutes), and the action stops by itself when too many fail again. A cancel has no waves. `drive_bulk` takes the
-- next step of every action that runs, in a bounded transaction: workers call it when they are told of one, tick does, and whoever
-- watches may.

-- The jobs that an action can do something about, unless the search says which states it wants.
create or replace function holdfast.bulk_query(p_verb text, p_query jsonb) returns jsonb
language plpgsql immutable set search_path = '' as $$
begin
  if p_verb is null or p_verb not in ('retry', 'cancel') then
    perform holdfast.refuse('HF004', format('%s is no bulk action.', quote_nullable(p_verb)), 'verb', 'Use retry or cancel.');
  end if;
  return case when p_query #> '{state,in}' is not null then p_query
    else p_query || jsonb_build_object('state', coalesce(p_query -> 'state', '{}') || case p_verb
      when 'retry' then '{"in": ["failed", "partial", "cancelled"]}'::jsonb else '{"in": ["alive"]}'::jsonb end) end;
end $$;

-- How many it would be: {count, exact}.
create or replace function holdfast.bulk_preview(p_verb text, p_query jsonb) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
begin
  return holdfast.count_jobs(holdfast.bulk_query(p_verb, p_query), 100000, 1000000);
end $$;

-- Options: {ramp: [10, 100], per_s, stop_share, limit}. Answers the id of the action.
create or replace function holdfast.bulk_start(
  p_verb text, p_query jsonb, p_search text, p_by text, p_why text, p_options jsonb default '{}') returns uuid
language plpgsql security definer set search_path = '' as $$
declare
  v_id uuid := holdfast.new_id();
  v_query jsonb := holdfast.bulk_query(p_verb, p_query);
  v_most integer := coalesce(holdfast.number_in(p_options, 'limit', 1, 100000), 100000);
  v_total bigint;
begin
  if coalesce(btrim(p_why), '') = '' then
    perform holdfast.refuse('HF004', 'A bulk action needs a reason.', 'why', 'Say why: others will read it.');
  end if;
  insert into holdfast.bulk_actions (id, verb, search, owner, started_by, why, total, created_at, per_s, stop_share, ramp)
  values (v_id, p_verb, left(p_search, 4000), p_query #>> '{owner,in,0}', coalesce(p_by, session_user), left(p_why, 1000), 0, holdfast.now(),
    holdfast.number_in(p_options, 'per_s', 0.001, 1000000), coalesce(holdfast.number_in(p_options, 'stop_share', 0, 1), 0.2),
    case when p_verb = 'cancel' then '{}' when jsonb_typeof(p_options -> 'ramp') = 'array' then array(
      select greatest(1, r::numeric)::int from jsonb_array_elements_text(p_options -> 'ramp') as r limit 10) else '{10,100}' end);
  insert into holdfast.bulk_jobs (bulk_id, job_id)
  select v_id, i from holdfast.find_jobs(v_query, null, null, v_most, 1000000) as i;
  get diagnostics v_total = row_count;
  update holdfast.bulk_actions b set total = v_total,
    status = case when v_total = 0 then 'done' else b.status end, finished_at = case when v_total = 0 then b.created_at end
  where b.id = v_id;
  perform pg_notify('holdfast', 'upkeep');
  return v_id;
end $$;

-- How the jobs of a wave fare, of all waves when p_wave is null: those that failed again, those that are well, the rest.
-- The newest p_most are looked at.
create or replace function holdfast.bulk_outcomes(p_id uuid, p_wave integer, p_most integer,
  out known bigint, out again bigint, out pending bigint)
language plpgsql stable set search_path = '' set jit = off as $$
begin
  select count(*) filter (where f.status in ('succeeded', 'failed', 'partial', 'cancelled') or f.failing),
    count(*) filter (where f.status in ('failed', 'partial') or f.failing), count(*) filter (where f.status in ('queued', 'running') and not f.failing)
  into known, again, pending
  from (
    select coalesce(j.status, holdfast.as_job_status(t.status), h.status) as status,
      coalesce(t.failures + t.crashes > 0, false) or coalesce(j.failed > 0 and j.finished_at is null, false) as failing
    from (select i.job_id from holdfast.bulk_jobs i where i.bulk_id = p_id and i.outcome = 'done' and i.wave is not null
        and (p_wave is null or i.wave = p_wave) order by i.at desc limit p_most) as i
    left join holdfast.jobs j on j.id = i.job_id
    left join holdfast.tasks t on t.id = i.job_id and t.job_id is null
    left join lateral (select h.status from holdfast.history h where h.id = i.job_id and h.job_id is null limit 1) as h on true
  ) as f;
end $$;

-- The next step of every action that runs; how many jobs were acted on. Nobody waits for anybody.
create or replace function holdfast.drive_bulk(p_limit integer default 200) returns integer
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_bulk holdfast.bulk_actions;
  v_count integer := 0;
begin
  for v_bulk in
    select * from holdfast.bulk_actions b where b.status = 'running' order by b.id limit 20 for update skip locked
  loop
    exit when v_count >= p_limit;
    v_count := v_count + holdfast.bulk_step(v_bulk, v_now, p_limit - v_count);
  end loop;
  return v_count;
end $$;

create or replace function holdfast.bulk_step(p_bulk holdfast.bulk_actions, p_now timestamptz, p_limit integer) returns integer
language plpgsql set search_path = '' as $$
declare
  v_ramping boolean := p_bulk.wave > 0 and p_bulk.wave <= cardinality(p_bulk.ramp);
  v_left bigint := 0;
  v_seen record;
  v_size integer;
begin
  if v_ramping then
    -- A wave larger than one step goes on until it is full.
    v_left := p_bulk.ramp[p_bulk.wave] - (select count(*) from holdfast.bulk_jobs i where i.bulk_id = p_bulk.id and i.wave = p_bulk.wave);
  end if;
  if p_bulk.verb = 'retry' and p_bulk.wave > 0 and v_left <= 0 then
    select * into v_seen from holdfast.bulk_outcomes(p_bulk.id, case when v_ramping then p_bulk.wave end, 1000);
    if v_seen.again > 0 and v_seen.again > p_bulk.stop_share * greatest(v_seen.known, least(10, p_bulk.total)) then
      update holdfast.bulk_actions b set status = 'stopped', finished_at = p_now, again = v_seen.again,
        stopped_why = format('%s of %s failed again.', v_seen.again, v_seen.known) where b.id = p_bulk.id;
      return 0;
    end if;
    if v_ramping and v_seen.pending > 0 and p_bulk.waved_at > p_now - interval '10 minutes' then
      update holdfast.bulk_actions b set again = v_seen.again where b.id = p_bulk.id and b.again <> v_seen.again;
      return 0;
    end if;
  end if;
  if p_bulk.waved_at > p_now then
    return 0;
  end if;
  v_size := case when v_left > 0 then v_left when p_bulk.wave < cardinality(p_bulk.ramp) then p_bulk.ramp[p_bulk.wave + 1] else p_limit end;
  return holdfast.bulk_wave(p_bulk, p_bulk.wave + (v_left <= 0 and p_bulk.wave <= cardinality(p_bulk.ramp))::int, least(v_size, p_limit), p_now);
end $$;

-- Acts on the next p_size jobs. Single tasks first, then others, each by id: the lock order of leases.sql.
create or replace function holdfast.bulk_wave(p_bulk holdfast.bulk_actions, p_wave integer, p_size integer, p_now timestamptz) returns integer
language plpgsql set search_path = '' as $$
declare
  v_one record;
  v_count integer := 0;
  v_done integer := 0;
  v_did boolean;
begin
  for v_one in
    select i.job_id from (select i.job_id from holdfast.bulk_jobs i where i.bulk_id = p_bulk.id and i.outcome is null
      order by i.job_id limit p_size for update) as i
    order by exists (select from holdfast.jobs j where j.id = i.job_id), i.job_id
  loop
    v_did := holdfast.bulk_act(p_bulk, v_one.job_id, coalesce(v_count / p_bulk.per_s, 0));
    update holdfast.bulk_jobs i set outcome = case when v_did then 'done' else 'passed' end, wave = p_wave, at = p_now
    where i.bulk_id = p_bulk.id and i.job_id = v_one.job_id;
    v_done := v_done + v_did::int;
    v_count := v_count + 1;
  end loop;
  update holdfast.bulk_actions b set wave = p_wave, done = b.done + v_done, passed = b.passed + v_count - v_done,
    waved_at = p_now + coalesce(v_count / p_bulk.per_s, 0) * interval '1 second',
    again = (select o.again from holdfast.bulk_outcomes(b.id, null, 1000) as o),
    status = case when v_count < p_size or b.done + b.passed + v_count >= b.total then 'done' else b.status end,
    finished_at = case when v_count < p_size or b.done + b.passed + v_count >= b.total then p_now end
  where b.id = p_bulk.id;
  return v_count;
end $$;

-- Whether the job was restarted or cancelled. One that changed in the meantime, or is gone, is left alone.
create or replace function holdfast.bulk_act(p_bulk holdfast.bulk_actions, p_job uuid, p_delay_s double precision) returns boolean
language plpgsql set search_path = '' as $$
begin
  if p_bulk.verb = 'cancel' then
    return holdfast.cancel_one(p_job, format('%s (bulk, by %s)', p_bulk.why, p_bulk.started_by), holdfast.now());
  end if;
  if holdfast.job_status(p_job) in ('failed', 'partial', 'cancelled') then
    return (holdfast.retry_job(p_job, null, p_delay_s) ->> 'restarted')::int > 0;
  end if;
  return false;
exception when sqlstate 'HF002' or sqlstate 'HF003' then
  return false;
end $$;

-- pause, resume, stop: answers whether it changed anything.
create or replace function holdfast.bulk_control(p_id uuid, p_verb text) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  if not exists (select from holdfast.bulk_actions b where b.id = p_id) then
    perform holdfast.refuse('HF002', format('There is no bulk action %s.', p_id), 'id');
  end if;
  case p_verb
    when 'pause' then update holdfast.bulk_actions b set status = 'paused' where b.id = p_id and b.status = 'running';
    when 'resume' then
      update holdfast.bulk_actions b set status = 'running', stopped_why = null where b.id = p_id and b.status = 'paused';
      perform pg_notify('holdfast', 'upkeep') where found;
      return found;
    when 'stop' then update holdfast.bulk_actions b set status = 'stopped', finished_at = holdfast.now(), stopped_why = 'Stopped by hand.'
      where b.id = p_id and b.status in ('running', 'paused');
    else perform holdfast.refuse('HF004', format('%s is not one of pause, resume, stop.', quote_nullable(p_verb)), 'verb');
  end case;
  return found;
end $$;

-- Takes back what has not started: restarted jobs are cancelled, cancelled ones restarted. Stops the action first.
-- Answers how many it took back; call again until it answers 0.
create or replace function holdfast.bulk_undo(p_id uuid, p_limit integer default 1000) returns integer
language plpgsql security definer set search_path = '' as $$
declare
  v_bulk holdfast.bulk_actions;
  v_one record;
  v_count integer := 0;
  v_did boolean;
begin
  select * into v_bulk from holdfast.bulk_actions b where b.id = p_id for update;
  if not found then
    perform holdfast.refuse('HF002', format('There is no bulk action %s.', p_id), 'id');
  end if;
  for v_one in
    select i.job_id, i.at from (select i.job_id, i.at from holdfast.bulk_jobs i where i.bulk_id = p_id and i.outcome = 'done'
      and i.wave is not null and holdfast.bulk_untouched(v_bulk.verb, i.job_id, i.at) order by i.job_id limit p_limit) as i
    order by exists (select from holdfast.jobs j where j.id = i.job_id), i.job_id
  loop
    v_did := case v_bulk.verb when 'retry' then holdfast.cancel_one(v_one.job_id, 'Undone (bulk).', holdfast.now())
      else (holdfast.retry_job(v_one.job_id) ->> 'restarted')::int > 0 end;
    if v_did then
      update holdfast.bulk_jobs i set outcome = 'undone' where i.bulk_id = p_id and i.job_id = v_one.job_id;
      v_count := v_count + 1;
    end if;
  end loop;
  update holdfast.bulk_actions b set undone = b.undone + v_count, status = 'undone', finished_at = coalesce(b.finished_at, holdfast.now())
  where b.id = p_id;
  return v_count;
end $$;

-- Whether nothing happened to a job since the action touched it: it has not started, or it is still cancelled.
create or replace function holdfast.bulk_untouched(p_verb text, p_job uuid, p_at timestamptz) returns boolean
language plpgsql stable set search_path = '' as $$
begin
  if p_verb = 'cancel' then
    return holdfast.job_status(p_job) = 'cancelled';
  end if;
  return holdfast.job_status(p_job) = 'queued' and not exists (
    select from holdfast.tasks t where (t.id = p_job or t.job_id = p_job) and (t.status || '' = 'running' or t.started_at >= p_at));
end $$;

create or replace function holdfast.bulk_json(p_bulk holdfast.bulk_actions) returns jsonb
language plpgsql stable set search_path = '' as $$
begin
  return to_jsonb(p_bulk) || (select jsonb_build_object('known', o.known, 'again', o.again, 'pending', o.pending)
    from holdfast.bulk_outcomes(p_bulk.id, null, 10000) as o);
end $$;

create or replace function holdfast.get_bulk(p_id uuid) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
begin
  return (select holdfast.bulk_json(b) from holdfast.bulk_actions b where b.id = p_id);
end $$;

create or replace function holdfast.list_bulk(p_before uuid default null, p_limit integer default 50) returns setof jsonb
language plpgsql stable security definer set search_path = '' as $$
begin
  return query select to_jsonb(b) from holdfast.bulk_actions b
  where b.id < coalesce(p_before, 'ffffffff-ffff-ffff-ffff-ffffffffffff') order by b.id desc limit least(greatest(p_limit, 1), 1000);
end $$;

-- The jobs of an action, in the order in which their turn comes.
create or replace function holdfast.bulk_members(p_id uuid, p_after uuid default null, p_limit integer default 50) returns setof jsonb
language plpgsql stable security definer set search_path = '' as $$
begin
  return query select (to_jsonb(i) - 'bulk_id') || jsonb_build_object('status', holdfast.job_status(i.job_id))
  from (select * from holdfast.bulk_jobs i where i.bulk_id = p_id and i.job_id > coalesce(p_after, '00000000-0000-0000-0000-000000000000')
    order by i.job_id limit least(greatest(p_limit, 1), 1000)) as i;
end $$;

call holdfast.allow('holdfast_worker', 'bulk_preview', 'bulk_start', 'drive_bulk', 'bulk_control', 'bulk_undo', 'get_bulk', 'list_bulk', 'bulk_members');
call holdfast.allow('service_role', 'bulk_preview', 'bulk_start', 'drive_bulk', 'bulk_control', 'bulk_undo', 'get_bulk', 'list_bulk', 'bulk_members');
