-- What people tell a worker to do, and when it left. Labels for people: nothing about tasks is decided by them.

alter table holdfast.workers
  add column command text check (command in ('drain', 'stop')),
  add column left_at timestamptz;
