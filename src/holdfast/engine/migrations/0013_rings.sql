-- Lanes with a key or a share stand in rings, and a claim walks a bounded part of each (claim_lanes.sql).

-- Workers are at work meanwhile: see 0003.
lock table holdfast.options, holdfast.workers in access exclusive mode;
lock table holdfast.lanes, holdfast.limits in access exclusive mode;

drop index holdfast.lanes_shared;
create index lanes_ring on holdfast.lanes (queue, type, priority, id) where limit_key is not null or share is not null;

-- How far a ring lane was read and when it was served. Nothing but hints, so a crash may forget them. Kept apart from `lanes`, which every
-- outcome reads: under an old snapshot each version of a row stays, and is walked by whoever looks for the newest one. Here that
-- is the first one found, by its number.
create unlogged table holdfast.turns (
  lane_id bigint not null,
  version bigint not null default 0,
  served_at timestamptz not null,
  cursor bigint not null,
  safe bigint,
  seen bigint,
  seen_xid bigint,
  seen_at timestamptz,
  looked_at timestamptz
) with (fillfactor = 50);
-- Not unique: whoever is first to serve a lane would make others wait. Two rows of a lane do no harm.
create index turns_newest on holdfast.turns (lane_id, version);
alter table holdfast.turns enable row level security;
alter table holdfast.turns force row level security;
create policy owner_all on holdfast.turns to current_user using (true) with check (true);
revoke all on holdfast.turns from public;
alter table holdfast.lanes drop column safe, drop column seen, drop column seen_xid, drop column seen_at, drop column looked_at;

-- The newest version of a counter is found first, however many older ones a snapshot keeps (claim.sql).
alter table holdfast.limits add column version bigint not null default 0;
alter table holdfast.limits drop constraint limits_pkey;
alter table holdfast.limits add primary key (id, version);

-- Where a lane stands in its ring as this claim walks it, and whether its row is worth writing when it is served.
alter type holdfast.open_lane add attribute ring text;
alter type holdfast.open_lane add attribute turn bigint;
alter type holdfast.open_lane add attribute write boolean;

drop function if exists holdfast.shared_lanes(text[], text[], integer, timestamptz);
drop function if exists holdfast.close_claim(holdfast.open_lane[], boolean, timestamptz);
