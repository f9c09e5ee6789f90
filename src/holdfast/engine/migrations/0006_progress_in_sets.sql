-- Progress is saved by one statement for several tasks (functions/jobs/progress.sql). These functions saved it one by
-- one.
drop function if exists holdfast.save_progress_of_tasks(jsonb, uuid[], timestamptz);
drop function if exists holdfast.save_task_progress(uuid, jsonb, timestamptz);
drop function if exists holdfast.save_job_progress(uuid, double precision, text, text, text, timestamptz);
