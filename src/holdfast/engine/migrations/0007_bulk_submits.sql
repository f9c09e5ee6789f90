-- Jobs that differ only in their arguments are inserted from an array (functions/jobs/submit_many.sql). This one took
-- them from JSON.
drop function if exists holdfast.insert_uniform_jobs(jsonb, jsonb);
