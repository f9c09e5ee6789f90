create table if not exists {}.contacts (
  user_id uuid not null,
  email text not null,
  name text not null,
  primary key (user_id, email)
);
call holdfast.protect_system_table('{}.contacts');   -- services change all rows, users read their own
call holdfast.register_owner_table('{}.contacts');   -- `holdfast owner erase` deletes them
