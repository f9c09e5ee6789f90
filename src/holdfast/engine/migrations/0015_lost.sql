-- A worker that died is told from one that left.

-- Workers are at work meanwhile: see 0003.
lock table holdfast.options, holdfast.workers in access exclusive mode;

alter table holdfast.workers add column lost boolean not null default false;
