-- Submit a job of one task whose type or parameters differ from those of the task, as job types do that build one call.
--
-- It has a row in `jobs` and one in `tasks`, like every graph. In a transaction that does nothing else both are inserted
-- with one statement (submit_standalone); the rows are the same as those of `submit`.

-- Return whether a job of a service is such a graph, with options that insert_one_task_graph knows.
create or replace function holdfast.is_plain_one_task_graph(p_job jsonb) returns boolean
language plpgsql stable set search_path = '' as $$
declare
  v_task jsonb := p_job #> '{tasks,0}';
begin
  if jsonb_typeof(v_task) is distinct from 'object' or jsonb_typeof(p_job -> 'tasks') <> 'array' then
    return false;
  end if;
  if jsonb_array_length(p_job -> 'tasks') <> 1 or p_job - '{type,params,labels,owner,tasks}'::text[] <> '{}'
    or pg_column_size(p_job) > 262144 or v_task ?| '{owner,labels,key,run_at,delay_s,expires_at}'
  then
    return false;
  end if;
  -- `submit` stores a job of one task without a graph if both have the same type, and checks unusual names.
  return coalesce((p_job ? 'params' or p_job ->> 'type' <> v_task ->> 'type')
    and p_job ->> 'type' ~ '^[^\x01-\x1f\x7f]{1,50}$'
    and coalesce(v_task ->> 'name', v_task ->> 'type') ~ '^[^\x01-\x1f\x7f]{1,50}$'
    and coalesce(v_task -> 'after', '[]') = '[]' and coalesce(v_task -> 'weight', '1') = '1'
    and holdfast.is_plain_single_task_job(v_task - '{name,after,weight}'::text[]), false);
end $$;

-- Insert a job of one task. Return {id, created, status, tasks: {name: id}}, or null if there is no lane for the task yet
-- or the owner has rules: then `submit` decides.
create or replace function holdfast.insert_one_task_graph(p_job jsonb) returns jsonb
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan as $$
declare
  v_task jsonb := p_job #> '{tasks,0}';
  v_type text := v_task ->> 'type';
  v_queue text := coalesce(v_task ->> 'queue', 'default');
  v_name text := coalesce(v_task ->> 'name', v_type);
  v_transaction xid8 := pg_current_xact_id();  -- before the first position (submit.sql)
  v_now timestamptz := holdfast.now();
  v_prefix text := holdfast.build_id_prefix(v_now);
  v_shard text := holdfast.get_shard_byte_hex();
  v_id uuid := holdfast.new_id(v_prefix, v_shard);
  v_task_id uuid := holdfast.new_id(v_prefix, v_shard);
  v_wake boolean;
begin
  with lane as materialized (
    select l.id from holdfast.find_open_lane(v_queue, v_type, v_task, p_job ->> 'owner') as l where l.id is not null
  ), job as (
    insert into holdfast.jobs (id, type, owner, total, progress_weight, params, labels)
    select v_id, p_job ->> 'type', p_job ->> 'owner', 1, 1, nullif(p_job -> 'params', 'null'),
      nullif(p_job -> 'labels', 'null') from lane
  )
  insert into holdfast.tasks (id, job_id, lane_id, pos, due_at, status, args, name, owner, weight)
  select v_task_id, v_id, lane.id, nextval('holdfast.task_positions'), v_now, 'ready', v_task -> 'args', v_name,
    p_job ->> 'owner', (v_task ->> 'weight')::double precision from lane
  returning exists (select from holdfast.workers w where w.sleeping
    and v_queue = any (w.queues) and (w.types is null or v_type = any (w.types))) into v_wake;
  if not found then
    return null;
  end if;
  if v_wake then
    perform holdfast.notify_sleeping_workers(array[v_queue], v_type, holdfast.count_workers_to_wake(1));
  end if;
  return jsonb_build_object('id', v_id, 'created', true, 'status', 'queued', 'tasks',
    jsonb_build_object(v_name, v_task_id));
end $$;
