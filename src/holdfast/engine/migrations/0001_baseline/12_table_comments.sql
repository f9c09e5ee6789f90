-- Comments on the tables that hold less or more than their name says.
comment on table holdfast.jobs is
  'jobs of several tasks; a job of one task has no row here, its row in tasks or history is the whole job';
comment on table holdfast.tasks is
  'tasks that have not ended, and ended tasks of jobs of several tasks until the job is archived';
comment on table holdfast.history is
  'ended tasks; a row with job_id null is a whole job of one task';
comment on table holdfast.attempts is
  'attempts that did not succeed; a task that succeeded at once has no row here';
comment on table holdfast.queues is
  'task queues that were paused or configured; a queue without a row has the defaults';
comment on table holdfast.lanes is
  'groups of tasks of one queue that are claimed in the same way: same type, retry policy, priority and limit key';
comment on table holdfast.dependencies is
  'which task of a job waits for which other task of the job';
comment on table holdfast.task_types is
  'the task types that workers registered, each with the schema of its arguments';
comment on table holdfast.workers is
  'workers that run or ran tasks, external workers of the HTTP API included';
comment on table holdfast.wakeups is
  'always empty: a row is inserted to fire the trigger that wakes up workers, and deleted at once';
comment on table holdfast.limit_counters is
  'the current use of each limit rule: one row per limit key, or one row for a rule without keys';
comment on table holdfast.quotas is
  'the maximum use of each owner; the row with an empty owner applies to owners without a row';
comment on table holdfast.usage is
  'the current use of each owner: stored bytes, stored files and jobs submitted today';
comment on table holdfast.dashboard_sessions is
  'sessions of people who are signed in to the dashboard; a session that ended has no row';
comment on table holdfast.stream_tickets is
  'tickets, which open one event stream once, and passes, which let the same browser reconnect';
comment on table holdfast.watched_jobs is
  'jobs for which an API process has an open event stream';
comment on table holdfast.webhooks is
  'outbound webhooks: the URLs that receive the events of jobs';
comment on table holdfast.inbound_webhooks is
  'inbound webhooks: the job type that a signed request from another system submits';
comment on table holdfast.bulk_action_jobs is
  'the jobs that a bulk action retries or cancels, with the outcome of each';
comment on table holdfast.reruns is
  'which job was submitted again as which new job';
comment on table holdfast.metric_samples is
  'ended tasks per minute and per quarter of an hour, by queue and task type';
