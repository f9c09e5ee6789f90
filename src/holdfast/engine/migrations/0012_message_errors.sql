-- The error of a message's last failed read, kept beside the queue while the message is retried. Not in its headers: those
-- belong to the sender, may be indexed, go into the archive with a message that succeeded in the end, and are shown to
-- every reader.
create table holdfast.message_errors (
  queue_name text not null,
  msg_id bigint not null,
  sent_at timestamptz not null,              -- tells it from a message of that id in a queue that was made anew
  reads integer not null,
  failed_at timestamptz not null,
  checked_at timestamptz not null,           -- when somebody looked last whether the message is still there
  error text not null check (octet_length(error) <= 16000),
  primary key (queue_name, msg_id)
);
create index message_errors_checked on holdfast.message_errors (checked_at);
comment on table holdfast.message_errors is 'why messages that are retried failed the last time; one row a message';

alter table holdfast.message_errors enable row level security;
alter table holdfast.message_errors force row level security;
create policy owner_all on holdfast.message_errors to current_user using (true) with check (true);
revoke all on holdfast.message_errors from public;
