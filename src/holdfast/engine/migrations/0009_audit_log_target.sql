-- holdfast: concurrently
-- The history of changes of one object is read by its target.
create index concurrently if not exists audit_log_target on holdfast.audit_log (target, id desc)
  where target is not null;
