-- What end users see of their jobs. Functions that users may call return these views to them, whichever way the call
-- came: the HTTP API, its RPC endpoint, PostgREST or SQL. server/api/job_views.py has the same rules in Python, for
-- applications that read jobs as a service; a test compares both.

-- Return an error as users see it: without the traceback. The message of an internal error is replaced.
create or replace function holdfast.redact_error(p_error jsonb) returns jsonb
language plpgsql immutable set search_path = '' as $$
declare
  v_type text := coalesce(nullif(p_error ->> 'type', ''), 'Error');
  v_view jsonb;
begin
  if p_error is null or p_error = 'null' then
    return p_error;
  end if;
  v_view := case
    when v_type in ('PublicError', 'Reject', 'Cancel', 'Cancelled', 'Skipped', 'ParentFailed', 'Expired') then
      jsonb_build_object('type', v_type, 'message', coalesce(p_error ->> 'message', ''))
    when v_type in ('TimedOut', 'TimeoutError') then
      jsonb_build_object('type', 'TimedOut', 'message', 'This took too long and was stopped.')
    else jsonb_build_object('type', 'Error', 'message', 'Something went wrong while working on this.') end;
  return case when coalesce(p_error ->> 'task', '') = '' then v_view
    else v_view || jsonb_build_object('task', p_error -> 'task') end;
end $$;

-- Return a job of get_job or list_jobs_page as users see it.
create or replace function holdfast.redact_job(p_job jsonb) returns jsonb
language plpgsql immutable set search_path = '' as $$
begin
  p_job := p_job || jsonb_build_object('error', holdfast.redact_error(p_job -> 'error'));
  if jsonb_typeof(p_job -> 'tasks') is distinct from 'array' then
    return p_job;
  end if;
  return p_job || jsonb_build_object('tasks', (
    select coalesce(jsonb_agg(t.body || jsonb_build_object('error', holdfast.redact_error(t.body -> 'error'))
      order by t.n), '[]')
    from jsonb_array_elements(p_job -> 'tasks') with ordinality as t (body, n)));
end $$;

-- Return the answer of explain_task as users see it: without the names of workers and operators, without the ids of
-- other tasks, and without the messages of crashes.
create or replace function holdfast.redact_explanation(p_explanation jsonb) returns jsonb
language plpgsql immutable set search_path = '' as $$
begin
  return p_explanation || jsonb_build_object('reasons', (
    select coalesce(jsonb_agg(r.body - '{worker,held_by,by,message}'::text[] || case when r.body ? 'error'
      then jsonb_build_object('error', holdfast.redact_error(r.body -> 'error')) else '{}' end order by r.n), '[]')
    from jsonb_array_elements(coalesce(nullif(p_explanation -> 'reasons', 'null'), '[]'))
      with ordinality as r (body, n)));
end $$;
