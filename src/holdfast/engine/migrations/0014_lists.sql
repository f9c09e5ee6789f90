-- Lists by a rare state walk an index of that state, however long the history is.

-- Workers are at work meanwhile: see 0003.
lock table holdfast.options, holdfast.workers in access exclusive mode;

create index history_cancelled_id on holdfast.history (id) where status = 'cancelled';
create index jobs_status on holdfast.jobs (status, id);
