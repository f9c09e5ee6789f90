-- Functions that have another name, signature or result now: outcomes of tasks, lanes of jobs and headers of tasks are
-- handled for many tasks at once.
drop function if exists holdfast.finish_remaining_tasks(uuid[], integer[], bigint[], text[], jsonb[], bigint[],
  timestamptz);
drop function if exists holdfast.find_lanes_for_jobs(jsonb);
drop function if exists holdfast.build_task_header(uuid, text, jsonb);

-- A dependency is updated once, when its parent has ended. With room for a second version of each row, the update
-- writes no index.
alter table holdfast.dependencies set (fillfactor = 50);
