-- Who may read, change and call what. Users insert and delete their own clips and read their own rows; everything else is
-- done by services and workers.
call holdfast.protect_system_table('{}.clipnest_videos');
call holdfast.protect_system_table('{}.clip_passages');
call holdfast.protect_system_table('{}.clip_steps', 'none');
call holdfast.protect_system_table('{}.clip_limits', 'none');
do $$
declare
  v_own constant text := 'user_id = (select holdfast.get_user_uuid_from_jwt_claims())';
  v_reading constant text[] := array['build_clip_url_key(text)', 'parse_clip_id(text)', 'find_vector_schema()',
    'compute_inner_product(real[], real[])', 'get_clip_search_mode()',
    'find_near_passages(uuid, real[], bit, text, integer, text)',
    'search_clips(text, real[], bit, text, integer, uuid)'];
  v_writing constant text[] := array['check_clip_limits(uuid)', 'build_clip_message(text, uuid, text)',
    'release_waiting_clips()', 'enqueue_clip(text, boolean)', 'has_clip_message({}.clipnest_videos)',
    'enqueue_abandoned_clips(timestamptz, integer)', 'ensure_clip_index(integer)'];
  v_function text;
  v_role text;
begin
  revoke all on function {}.prepare_clip(), {}.delete_clip_parts(), {}.send_inserted_clips() from public;
  foreach v_function in array v_reading || v_writing loop
    execute format('revoke all on function {}.%s from public', v_function);
    foreach v_role in array array['service_role', 'holdfast_worker', 'authenticated'] loop
      continue when not exists (select from pg_catalog.pg_roles where rolname = v_role)
        or (v_role = 'authenticated' and v_function = any (v_writing));
      execute format('grant execute on function {}.%s to %I', v_function, v_role);
    end loop;
  end loop;
  drop policy if exists insert_own_clips on {}.clipnest_videos;
  drop policy if exists delete_own_clips on {}.clipnest_videos;
  if exists (select from pg_catalog.pg_roles where rolname = 'authenticated') then
    grant insert (user_id, video_url, title) on {}.clipnest_videos to authenticated;
    grant delete on {}.clipnest_videos to authenticated;
    execute format('create policy insert_own_clips on {}.clipnest_videos for insert to authenticated with check (%s)', v_own);
    execute format('create policy delete_own_clips on {}.clipnest_videos for delete to authenticated using (%s)', v_own);
  end if;
end $$;
