create table if not exists notes (
  id bigint generated always as identity primary key,
  text text not null,
  words jsonb
);
