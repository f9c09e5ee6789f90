-- Usage of providers: what calls of language models, speech servers and so on used and cost.
--
-- A worker records a paid call before it sends it (`started`) and again when it has ended, in transactions of their
-- own: what was spent stays counted, whatever becomes of the task. Single calls are kept for 90 days, totals for ever.

-- Record a call, or how it ended. Recording the same call twice changes nothing. Return whether it was counted.
create or replace function holdfast.record_provider_call(
  p_id uuid, p_kind text, p_provider text, p_model text, p_status text, p_owner text default null,
  p_job_id uuid default null, p_task_id uuid default null, p_attempt integer default null, p_source text default null,
  p_tokens_in bigint default null, p_tokens_out bigint default null, p_audio_s double precision default null,
  p_images bigint default null, p_cost numeric default null, p_duration_s double precision default null)
returns boolean
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_call holdfast.provider_calls;
  v_ended integer := (p_status is distinct from 'started')::integer;
  v_is_new boolean;
begin
  if p_status is null or p_status not in ('started', 'succeeded', 'failed', 'unknown') then
    perform holdfast.raise_error('HF004', 'status must be started, succeeded, failed or unknown.', 'status');
  end if;
  if p_id is null or p_kind is null or p_provider is null or p_model is null then
    perform holdfast.raise_error('HF004', 'A provider call needs an id, a kind, a provider and a model.', 'id');
  end if;
  if least(p_tokens_in, p_tokens_out, p_images, p_cost, 0) < 0 or p_audio_s < 0 or p_duration_s < 0
    or greatest(p_audio_s, p_duration_s) > 1e9 or p_cost > 1e9 or greatest(p_tokens_in, p_tokens_out, p_images) > 1e12
  then
    perform holdfast.raise_error('HF004', 'The usage of a provider call is negative or too large.', 'usage');
  end if;
  insert into holdfast.provider_calls (id, kind, provider, model, status, owner, job_id, task_id, attempt, source,
    tokens_in, tokens_out, audio_s, images, cost, duration_s, created_at)
  values (p_id, holdfast.check_text(p_kind, 'kind', 100), holdfast.check_text(p_provider, 'provider', 300),
    holdfast.check_text(p_model, 'model', 300), p_status, holdfast.check_owner(p_owner), p_job_id, p_task_id, p_attempt,
    holdfast.check_text(p_source, 'source', 1000), p_tokens_in, p_tokens_out, p_audio_s, p_images, p_cost, p_duration_s,
    v_now)
  on conflict (id) do nothing returning * into v_call;
  v_is_new := found;
  if not v_is_new then
    update holdfast.provider_calls c set status = p_status, tokens_in = p_tokens_in, tokens_out = p_tokens_out,
      audio_s = p_audio_s, images = p_images, cost = p_cost, duration_s = p_duration_s
    where c.id = p_id and c.status = 'started' and p_status <> 'started'
    returning * into v_call;
    if not found then
      return false;
    end if;
  end if;
  insert into holdfast.provider_usage as u (owner, day, kind, provider, model, calls, succeeded, failed, unknown,
    tokens_in, tokens_out, audio_s, images, cost, unpriced)
  values (coalesce(v_call.owner, ''), (v_call.created_at at time zone 'UTC')::date, v_call.kind, v_call.provider,
    v_call.model, v_is_new::integer, (p_status = 'succeeded')::integer, (p_status = 'failed')::integer,
    (p_status = 'unknown')::integer, coalesce(p_tokens_in, 0), coalesce(p_tokens_out, 0), coalesce(p_audio_s, 0),
    coalesce(p_images, 0), coalesce(p_cost, 0), v_ended * (p_cost is null)::integer)
  on conflict (owner, day, kind, provider, model) do update set calls = u.calls + excluded.calls,
    succeeded = u.succeeded + excluded.succeeded, failed = u.failed + excluded.failed,
    unknown = u.unknown + excluded.unknown, tokens_in = u.tokens_in + excluded.tokens_in,
    tokens_out = u.tokens_out + excluded.tokens_out, audio_s = u.audio_s + excluded.audio_s,
    images = u.images + excluded.images, cost = u.cost + excluded.cost, unpriced = u.unpriced + excluded.unpriced;
  return true;
end $$;

-- Return the cost of an owner's calls since a day: one range of the primary key of the totals. Budgets use it.
create or replace function holdfast.get_provider_cost(p_owner text, p_since date default '-infinity') returns numeric
language plpgsql stable security definer set search_path = '' as $$
begin
  return (select coalesce(sum(u.cost), 0) from holdfast.provider_usage u
    where u.owner = coalesce(holdfast.get_end_user_id(), p_owner, '') and u.day >= p_since);
end $$;

-- List the usage of providers from the totals, grouped by the columns in p_group_by (owner, day, kind, provider,
-- model), the most expensive first. Users see their own usage only.
create or replace function holdfast.list_provider_usage(
  p_owner text default null, p_since date default null, p_until date default null,
  p_group_by text[] default '{kind,provider,model}', p_limit integer default 1000)
returns table (owner text, day date, kind text, provider text, model text, calls bigint, succeeded bigint,
  failed bigint, unknown bigint, tokens_in bigint, tokens_out bigint, audio_s double precision, images bigint,
  cost numeric, unpriced bigint)
language plpgsql stable security definer set search_path = '' as $$
declare
  v_owner text := coalesce(holdfast.get_end_user_id(), p_owner);
begin
  if not p_group_by <@ '{owner,day,kind,provider,model}'::text[] then
    perform holdfast.raise_error('HF004', 'group_by may name owner, day, kind, provider and model.', 'group_by');
  end if;
  return query
  select g.owner, g.day, g.kind, g.provider, g.model, sum(g.calls)::bigint, sum(g.succeeded)::bigint,
    sum(g.failed)::bigint, sum(g.unknown)::bigint, sum(g.tokens_in)::bigint, sum(g.tokens_out)::bigint, sum(g.audio_s),
    sum(g.images)::bigint, sum(g.cost), sum(g.unpriced)::bigint
  from (
    select case when 'owner' = any (p_group_by) then u.owner end as owner,
      case when 'day' = any (p_group_by) then u.day end as day,
      case when 'kind' = any (p_group_by) then u.kind end as kind,
      case when 'provider' = any (p_group_by) then u.provider end as provider,
      case when 'model' = any (p_group_by) then u.model end as model,
      u.calls, u.succeeded, u.failed, u.unknown, u.tokens_in, u.tokens_out, u.audio_s, u.images, u.cost, u.unpriced
    from holdfast.provider_usage u
    where (v_owner is null or u.owner = v_owner) and (p_since is null or u.day >= p_since)
      and (p_until is null or u.day <= p_until)
  ) as g
  group by 1, 2, 3, 4, 5 order by sum(g.cost) desc, sum(g.calls) desc, 1, 2, 3, 4, 5
  limit least(greatest(coalesce(p_limit, 1000), 1), 10000);
end $$;

-- List the usage of a job by task, attempt, kind and model, from the single calls (90 days).
create or replace function holdfast.list_job_provider_usage(p_job_id uuid)
returns table (task_id uuid, attempt integer, kind text, provider text, model text, calls bigint, succeeded bigint,
  failed bigint, unknown bigint, tokens_in bigint, tokens_out bigint, audio_s double precision, images bigint,
  cost numeric, unpriced bigint)
language plpgsql stable security definer set search_path = '' as $$
declare
  v_user text := holdfast.get_end_user_id();
begin
  return query
  select c.task_id, c.attempt, c.kind, c.provider, c.model, count(*),
    count(*) filter (where c.status = 'succeeded'), count(*) filter (where c.status = 'failed'),
    count(*) filter (where c.status = 'unknown'), coalesce(sum(c.tokens_in), 0)::bigint,
    coalesce(sum(c.tokens_out), 0)::bigint, coalesce(sum(c.audio_s), 0), coalesce(sum(c.images), 0)::bigint,
    coalesce(sum(c.cost), 0), count(*) filter (where c.cost is null and c.status <> 'started')
  from holdfast.provider_calls c
  where c.job_id = p_job_id and (v_user is null or c.owner = v_user)
  group by 1, 2, 3, 4, 5 order by min(c.created_at) limit 10000;
end $$;

-- Delete single calls that are older than 90 days. Their totals stay.
create or replace function holdfast.tick_providers(p_limit integer default 1000) returns integer
language plpgsql security definer set search_path = '' as $$
declare
  v_count integer;
begin
  delete from holdfast.provider_calls c where c.id in (
    select o.id from holdfast.provider_calls o where o.created_at < holdfast.now() - interval '90 days'
    order by o.created_at limit p_limit for update skip locked);
  get diagnostics v_count = row_count;
  return v_count;
end $$;

call holdfast.grant_execute('holdfast_worker', 'record_provider_call', 'get_provider_cost', 'tick_providers');
call holdfast.grant_execute('service_role', 'record_provider_call', 'get_provider_cost', 'list_provider_usage',
  'list_job_provider_usage', 'tick_providers');
call holdfast.grant_execute('authenticated', 'get_provider_cost', 'list_provider_usage', 'list_job_provider_usage');
