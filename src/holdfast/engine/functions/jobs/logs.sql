-- Log lines of tasks, kept with their attempt for a week.

-- Save the log lines of a worker's attempts; p_batch is [{id, attempt, nonce, lines: [{seq, at, level, message,
-- fields}]}]. Lines of an attempt that has lost its lease are saved too, because they say what happened; lines of a
-- lease that never existed are not. Lines that are already stored, because a response was lost, are skipped. Return
-- the number of new lines. Writers of one job wait for each other, so that its lines become visible in the order of
-- `n`.
create or replace function holdfast.write_logs(p_batch jsonb) returns integer
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_attempt record;
  v_inserted integer;
  v_count integer := 0;
begin
  for v_attempt in
    select g.attempt, g.lines, t.id, t.owner, coalesce(t.job_id, t.id) as job_id
    from jsonb_to_recordset(p_batch) as g (id uuid, attempt integer, nonce bigint, lines jsonb)
    cross join lateral (
      select t.id, t.job_id, t.owner, t.attempt, t.nonce from holdfast.tasks t where t.id = g.id
      union all
      select h.id, h.job_id, h.owner, h.attempt, h.nonce from holdfast.history h where h.id = g.id
      limit 1
    ) as t
    where t.attempt > g.attempt or (t.attempt = g.attempt and coalesce(t.nonce, g.nonce) = g.nonce)
    order by hashtext(coalesce(t.job_id, t.id)::text), t.id
  loop
    perform pg_advisory_xact_lock(hashtext('holdfast.logs'), hashtext(v_attempt.job_id::text));
    insert into holdfast.logs (n, task_id, job_id, attempt, seq, at, keep_until, owner, level, message, fields)
    select nextval('holdfast.log_line_numbers'), v_attempt.id, v_attempt.job_id, v_attempt.attempt, l.seq, l.at,
      v_now + interval '7 days',
      v_attempt.owner, l.level, left(l.message, 4000), nullif(l.fields, 'null')
    from (
      select l.* from jsonb_to_recordset(v_attempt.lines) as l (seq integer, at timestamptz, level text, message text,
        fields jsonb)
      where l.seq > coalesce((
        select max(o.seq) from holdfast.logs o where o.task_id = v_attempt.id and o.attempt = v_attempt.attempt), 0)
      order by l.seq
    ) as l;
    get diagnostics v_inserted = row_count;
    v_count := v_count + v_inserted;
  end loop;
  return v_count;
end $$;

-- Return log lines of a job, oldest first: the lines after p_after, or the most recent ones if p_newest is set.
create or replace function holdfast.read_logs(
  p_job uuid, p_after bigint default 0, p_limit integer default 500, p_task uuid default null,
  p_level text default 'debug', p_newest boolean default false)
returns table (n bigint, task_id uuid, attempt integer, seq integer, at timestamptz, level text, message text,
  fields jsonb)
language plpgsql stable security definer set search_path = '' as $$
#variable_conflict use_column
declare
  v_user text := holdfast.get_end_user_id();
  v_levels text[] := '{debug,info,warning,error}';
  v_limit integer := least(greatest(coalesce(p_limit, 500), 1), 5000);
begin
  v_levels := v_levels[array_position(v_levels, p_level):];
  if v_levels is null or v_levels = '{}' then
    perform holdfast.raise_error('HF004', format('level must be debug, info, warning or error, got %s.',
      quote_nullable(p_level)), 'level');
  end if;
  if p_newest then
    return query
    select s.* from (
      select l.n, l.task_id, l.attempt, l.seq, l.at, l.level, l.message, l.fields from holdfast.logs l
      where l.job_id = p_job and l.n > coalesce(p_after, 0) and (p_task is null or l.task_id = p_task)
        and l.level = any (v_levels) and (v_user is null or l.owner = v_user)
      order by l.n desc limit v_limit
    ) as s order by s.n;
  else
    return query
    select l.n, l.task_id, l.attempt, l.seq, l.at, l.level, l.message, l.fields from holdfast.logs l
    where l.job_id = p_job and l.n > coalesce(p_after, 0) and (p_task is null or l.task_id = p_task)
      and l.level = any (v_levels) and (v_user is null or l.owner = v_user)
    order by l.n limit v_limit;
  end if;
end $$;

call holdfast.grant_execute('holdfast_worker', 'write_logs', 'read_logs');
call holdfast.grant_execute('service_role', 'write_logs', 'read_logs');
