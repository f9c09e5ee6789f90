create table if not exists members (
  email text primary key,
  joined_at timestamptz not null default now(),
  welcomed_at timestamptz
);
create table if not exists photos (
  id bigint generated always as identity primary key,
  email text not null references members,
  title text not null
);
