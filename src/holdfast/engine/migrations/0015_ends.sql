-- How things ended: a worker that died is told from one that left, a batch that was cancelled from one that went well.

-- Workers are at work meanwhile: see 0003.
lock table holdfast.options, holdfast.workers in access exclusive mode;

alter table holdfast.workers add column lost boolean not null default false;
alter table holdfast.batches add column cancelled integer not null default 0;
