-- Maintenance problems: one row whose maintenance fails does not stop the others.
--
-- A maintenance step handles its rows all at once, in a block that can fail as a whole. If it fails because of the
-- data of a row, the step handles the rows one by one. A row that fails again is recorded here and left out for a
-- while: a minute, then twice as long each time, up to an hour. `holdfast doctor` and the dashboard show the problems.

-- Return whether an error may be gone at the next try: lost connections, conflicts with other transactions, missing
-- resources, shutdowns, and missing privileges. All other errors are errors of the data.
create or replace function holdfast.is_temporary_error(p_sqlstate text) returns boolean
language plpgsql immutable set search_path = '' as $$
begin
  return left(p_sqlstate, 2) in ('08', '25', '40', '53', '55', '57', '58') or p_sqlstate = '42501';
end $$;

-- Record that the maintenance of a row failed, or that it failed again.
create or replace function holdfast.record_maintenance_problem(p_kind text, p_subject text, p_message text,
  p_now timestamptz) returns void
language plpgsql set search_path = '' as $$
declare
  v_max_doublings constant integer := 6; -- about an hour
begin
  insert into holdfast.maintenance_problems as p (kind, subject, message, first_at, last_at, retry_at)
  values (p_kind, left(p_subject, 200), holdfast.truncate_middle(p_message, 1000), p_now, p_now,
    p_now + interval '1 minute')
  on conflict (kind, subject) do update set message = excluded.message, failures = p.failures + 1, last_at = p_now,
    retry_at = p_now + interval '1 minute' * power(2, least(p.failures, v_max_doublings));
end $$;

-- Return the rows of one kind whose maintenance pauses now.
create or replace function holdfast.list_paused_subjects(p_kind text, p_now timestamptz) returns text[]
language plpgsql stable set search_path = '' as $$
begin
  return array(select p.subject from holdfast.maintenance_problems p where p.kind = p_kind and p.retry_at > p_now);
end $$;

-- Run a maintenance call for rows: for all at once, or one by one if a row fails because of its data. p_call takes the
-- rows as $1 (text[]) and the time as $2, and returns a number. Return the sum.
create or replace function holdfast.run_isolated(p_kind text, p_call text, p_subjects text[], p_now timestamptz)
  returns integer
language plpgsql set search_path = '' as $$
declare
  v_subject text;
  v_count integer;
  v_total integer := 0;
begin
  if p_subjects = '{}' then
    return 0;
  end if;
  begin
    execute p_call into v_count using p_subjects, p_now;
    delete from holdfast.maintenance_problems p where p.kind = p_kind and p.subject = any (p_subjects);
    return v_count;
  exception when others then
    if holdfast.is_temporary_error(sqlstate) then
      raise;
    end if;
  end;
  foreach v_subject in array p_subjects loop
    begin
      execute p_call into v_count using array[v_subject], p_now;
      v_total := v_total + v_count;
      delete from holdfast.maintenance_problems p where p.kind = p_kind and p.subject = v_subject;
    exception when others then
      if holdfast.is_temporary_error(sqlstate) then
        raise;
      end if;
      perform holdfast.record_maintenance_problem(p_kind, v_subject, sqlerrm, p_now);
    end;
  end loop;
  return v_total;
end $$;

-- Run one step of `tick` and return {name: result}. A step that fails because of its data is recorded as a problem and
-- returns {}. p_call takes the time as $1 and the maximum number of rows as $2.
create or replace function holdfast.run_tick_step(p_name text, p_call text, p_now timestamptz, p_limit integer)
  returns jsonb
language plpgsql set search_path = '' as $$
declare
  v_result jsonb;
begin
  execute format('select to_jsonb((%s))', p_call) into v_result using p_now, p_limit;
  delete from holdfast.maintenance_problems p where p.kind = 'maintenance step' and p.subject = p_name;
  return jsonb_build_object(p_name, v_result);
exception when others then
  if holdfast.is_temporary_error(sqlstate) then
    raise;
  end if;
  perform holdfast.record_maintenance_problem('maintenance step', p_name, sqlerrm, p_now);
  return '{}';
end $$;

-- List maintenance problems, the newest first.
create or replace function holdfast.list_maintenance_problems(p_limit integer default 50)
returns table (kind text, subject text, message text, failures integer, first_at timestamptz, last_at timestamptz,
  retry_at timestamptz)
language plpgsql stable security definer set search_path = '' as $$
#variable_conflict use_column
begin
  return query select p.kind, p.subject, p.message, p.failures, p.first_at, p.last_at, p.retry_at
  from holdfast.maintenance_problems p order by p.last_at desc, p.kind, p.subject
    limit least(greatest(p_limit, 1), 1000);
end $$;

-- Delete problems that were not seen again for a week: their rows are gone.
create or replace function holdfast.delete_old_maintenance_problems(p_now timestamptz, p_limit integer) returns integer
language plpgsql set search_path = '' as $$
declare
  v_count integer;
begin
  delete from holdfast.maintenance_problems p where (p.kind, p.subject) in (
    select o.kind, o.subject from holdfast.maintenance_problems o where o.last_at < p_now - interval '7 days'
    limit p_limit for update skip locked);
  get diagnostics v_count = row_count;
  return v_count;
end $$;

call holdfast.grant_execute('holdfast_worker', 'list_maintenance_problems');
call holdfast.grant_execute('service_role', 'list_maintenance_problems');
