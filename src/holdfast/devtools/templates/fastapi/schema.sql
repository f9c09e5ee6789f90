create table if not exists members (
  id bigint generated always as identity primary key,
  email text not null unique,
  welcomed_at timestamptz
);
