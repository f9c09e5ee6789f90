-- Payloads that may have secrets. Whoever shows the texts of a job (errors, tracebacks, logs, progress) to somebody who
-- may not see its secrets looks for them here first, to mask them in the texts.

-- Return {job, exists, complete, payloads: [{value, schema}]} for each job: the parameters of the job, and arguments,
-- output and schema of its tasks. Payloads without secrets are left out: those in which nothing matches p_names, the
-- pattern of the names of secret fields, and whose type has no schema that may mark a field. `exists` is false for a job
-- that has been deleted. `complete` is false if there are more than p_max_bytes of payloads: then the secrets of the job
-- are not known.
create or replace function holdfast.list_secret_payloads(p_jobs uuid[], p_names text, p_max_bytes bigint default 16777216)
  returns setof jsonb
language plpgsql stable security definer set search_path = '' set jit = off set plan_cache_mode = force_custom_plan
  as $$
declare
  v_marks constant text := '"(writeOnly|x-secret)"|"format": *"password"';
begin
  return query
  with payload as (
    select f.job, f.value, f.schema, sum(octet_length(f.value::text)) over (order by f.job, f.id, f.part) as bytes
    from (
      select j.id as job, j.id, 0 as part, j.params as value, k.schema
      from holdfast.jobs j left join holdfast.task_types k on k.name = j.type where j.id = any (p_jobs)
      union all
      select t.job_id, t.id, 1, jsonb_build_array(t.args, t.output), k.schema
      from holdfast.all_tasks t left join holdfast.task_types k on k.name = t.type
      where t.id in (select unnest(p_jobs) union all select i.id from holdfast.tasks i where i.job_id = any (p_jobs)
        union all select h.id from holdfast.history h where h.job_id = any (p_jobs))
    ) as f where f.value::text ~* p_names or f.schema::text ~ v_marks
  )
  select jsonb_build_object('job', g.id, 'exists', holdfast.can_user_see_job(g.id, null),
    'complete', not exists (select from payload p where p.job = g.id and p.bytes > p_max_bytes),
    'payloads', (select coalesce(jsonb_agg(jsonb_build_object('value', p.value, 'schema', p.schema)), '[]')
      from payload p where p.job = g.id and p.bytes <= p_max_bytes))
  from (select distinct u as id from unnest(p_jobs) as u) as g;
end $$;

call holdfast.grant_execute('holdfast_worker', 'list_secret_payloads');
call holdfast.grant_execute('service_role', 'list_secret_payloads');
