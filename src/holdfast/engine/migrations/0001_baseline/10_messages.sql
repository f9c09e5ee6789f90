-- Message queues. Their tables are created by pgmq.create; this one stands beside them.

-- The error of a message's last failed read, kept while the message is retried. It is not in the message's headers:
-- those belong to the sender, may be indexed, go into the archive with a message that succeeded in the end, and are
-- visible to every reader.
create table holdfast.message_errors (
  queue_name text not null,
  msg_id bigint not null,
  sent_at timestamptz not null,              -- tells it from a message with the same id in a recreated queue
  reads integer not null,
  failed_at timestamptz not null,
  checked_at timestamptz not null,           -- when maintenance last checked that the message still exists
  error text not null check (octet_length(error) <= 16000),
  primary key (queue_name, msg_id)
);
create index message_errors_checked on holdfast.message_errors (checked_at);
comment on table holdfast.message_errors is 'the last error of each message that is being retried; one row per message';
