-- Submit one job for a caller of the HTTP API: take the rights of the caller and submit, in one round trip instead of
-- four. Only for a transaction that does nothing else, because the role stays until its end.

-- Submit with the rights of a role and the claims of a token. With an owner, the caller is a service that submits for a
-- user, who may have p_user_jobs unfinished jobs; with p_only_public, only jobs of types that users may submit.
-- The function has the rights of its caller, so it lets nobody take a role that `set role` would not.
create or replace function holdfast.submit_as_role(p_role text, p_claims text, p_user_jobs integer, p_job jsonb,
  p_owner text default null, p_only_public boolean default false) returns jsonb
language plpgsql set search_path = '' as $$
begin
  perform set_config('request.jwt.claims', p_claims, true), set_config('holdfast.user_jobs', p_user_jobs::text, true),
    case when p_role is not null then set_config('role', p_role, true) end;
  if p_role = 'authenticated' then
    return holdfast.submit(p_job);
  elsif p_owner is null then
    return holdfast.submit_standalone(p_job);
  elsif p_only_public then
    return holdfast.submit_public_job(p_job, p_owner, p_user_jobs);
  end if;
  -- As submit_within_job_limit, with the faster submit of a transaction that does nothing else.
  perform holdfast.check_unfinished_job_limit(p_owner, p_user_jobs, p_job ->> 'key');
  return holdfast.submit_standalone(p_job || jsonb_build_object('owner', p_owner));
end $$;

-- Submit the jobs of several requests in one transaction, for callers with the same role and claims. p_owners has the user
-- of each job, or null. Return the result of each job in their order, or null for a job that must be submitted alone:
-- that waits for locks, and has an error of its own. So no request waits for the job of another one.
create or replace function holdfast.submit_together(p_role text, p_claims text, p_user_jobs integer, p_jobs jsonb[],
  p_owners text[]) returns jsonb[]
language plpgsql set search_path = '' as $$
begin
  perform set_config('request.jwt.claims', p_claims, true), set_config('holdfast.user_jobs', p_user_jobs::text, true),
    case when p_role is not null then set_config('role', p_role, true) end;
  return holdfast.submit_plain_jobs(p_jobs, p_owners, p_user_jobs);
end $$;

call holdfast.grant_execute('service_role', 'submit_as_role', 'submit_together');
