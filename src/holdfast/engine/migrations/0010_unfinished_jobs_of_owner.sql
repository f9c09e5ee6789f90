-- holdfast: concurrently
-- Every submit of a user counts the unfinished jobs of that user. Without this index it read the unfinished jobs of all
-- users, or all jobs of the user that are still kept.
create index concurrently if not exists jobs_owner_unfinished on holdfast.jobs (owner, id)
  where finished_at is null and owner is not null;
