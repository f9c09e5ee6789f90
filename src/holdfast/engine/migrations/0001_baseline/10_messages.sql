-- Message queues. pgmq.create creates the tables of a queue; these tables stand beside them.

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

-- What happens to messages that fail, and how long archives are kept. A queue without a row has the defaults.
create table holdfast.message_policies (
  queue_name text primary key,
  vt interval not null default '30 seconds' check (vt > '0'),
  max_reads integer check (max_reads > 0),
  backoff interval not null default '5 seconds' check (backoff >= '0'),
  backoff_cap interval not null default '15 minutes' check (backoff_cap >= '0'),
  dead_letter_queue text check (dead_letter_queue <> queue_name),
  archive_retention interval check (archive_retention >= '0'),
  created_at timestamptz not null default pg_catalog.clock_timestamp(),
  updated_at timestamptz not null default pg_catalog.clock_timestamp()
);
comment on table holdfast.message_policies is 'retries, dead letters and archive retention; one row per queue';
