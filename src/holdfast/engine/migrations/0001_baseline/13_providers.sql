-- Usage of providers (language models, speech and so on): single calls, and their totals by owner and day.

create table holdfast.provider_calls (
  id uuid primary key,                       -- chosen by the caller, so that a call recorded twice counts once
  kind text not null,                        -- text, vision, embeddings, speech, transcription, scraping
  provider text not null,                    -- the host of the server, or local
  model text not null,
  -- started: no answer is known, because it is on its way or its process died. failed: the provider answered with an
  -- error. unknown: no usable answer came, and the provider may have charged for it.
  status text not null check (status in ('started', 'succeeded', 'failed', 'unknown')),
  owner text,
  job_id uuid,
  task_id uuid,
  attempt integer,
  source text,                               -- what caused a call that no task made, such as 'bookmark 17'
  tokens_in bigint,
  tokens_out bigint,
  audio_s double precision,
  images bigint,
  cost numeric,                              -- null: the model has no price, or the usage is not known
  duration_s double precision,
  created_at timestamptz not null
);
create index provider_calls_job on holdfast.provider_calls (job_id) where job_id is not null;
create index provider_calls_created_at on holdfast.provider_calls (created_at);

-- One row per owner, day (UTC), kind, provider and model. `calls` includes those that failed or have not ended.
create table holdfast.provider_usage (
  owner text not null,                       -- empty: calls without an owner
  day date not null,
  kind text not null,
  provider text not null,
  model text not null,
  calls bigint not null default 0,
  succeeded bigint not null default 0,
  failed bigint not null default 0,
  unknown bigint not null default 0,
  tokens_in bigint not null default 0,
  tokens_out bigint not null default 0,
  audio_s double precision not null default 0,
  images bigint not null default 0,
  cost numeric not null default 0,
  unpriced bigint not null default 0,        -- ended calls whose cost is not known
  primary key (owner, day, kind, provider, model)
) with (fillfactor = 70);
create index provider_usage_day on holdfast.provider_usage (day);
