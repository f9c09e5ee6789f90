-- Failures in the order of their time, whatever their kind: a redrive walks them from the oldest (redrive_find.sql). Those that
-- succeed are not in it.

-- Workers are at work meanwhile: see 0003.
lock table holdfast.options, holdfast.workers in access exclusive mode;

create index history_failed_at on holdfast.history (finished_at) where status = 'failed';

-- Replaced by find_failed.
drop function if exists holdfast.failed_jobs(jsonb, integer);
