-- Search by meaning and by words. With pgvector, distances are computed by it and large collections have an HNSW index;
-- without it, the signs of the embeddings (256 bits) choose candidates, whose distances are then computed exactly.

-- pgvector is used if the server has it and this role may create it, or somebody has created it. It gets a schema of
-- its own, as on Supabase, because everybody may call its functions.
do $$
declare
  v_role text;
begin
  if exists (select from pg_catalog.pg_available_extensions where name = 'vector' and installed_version is null) then
    create schema if not exists extensions;
    create extension vector schema extensions;
    foreach v_role in array array['service_role', 'holdfast_worker', 'authenticated'] loop
      if exists (select from pg_catalog.pg_roles where rolname = v_role) then
        execute format('grant usage on schema extensions to %I', v_role);
      end if;
    end loop;
  end if;
exception when others then
  raise notice 'pgvector was not created (%); search uses the signs of embeddings.', sqlerrm;
end $$;

-- Return the schema of pgvector, quoted, or null without it.
create or replace function {}.find_vector_schema() returns text
language sql stable set search_path = '' as $$
  select quote_ident(n.nspname) from pg_catalog.pg_extension e join pg_catalog.pg_namespace n on n.oid = e.extnamespace
  where e.extname = 'vector'
$$;

-- Create the HNSW index for embeddings of a dimension, if pgvector can index it. Workers call it before they store the
-- first embedding of a dimension. Return whether the index exists.
create or replace function {}.ensure_clip_index(p_dimension integer) returns boolean
language plpgsql security definer set search_path = '' as $$
declare
  v_max_dimension constant integer := 2000; -- of HNSW
  v_vector text := {}.find_vector_schema();
  v_name text := 'clip_passages_hnsw_' || p_dimension;
begin
  if v_vector is null or p_dimension is null or p_dimension not between 1 and v_max_dimension then
    return false;
  end if;
  if to_regclass('{}.' || v_name) is null then
    perform pg_advisory_xact_lock(7263483, 3);
    execute format('create index if not exists %1$I on {}.clip_passages
      using hnsw ((embedding::%2$s.vector(%3$s)) %2$s.vector_cosine_ops) where embedding_dimension = %3$s',
      v_name, v_vector, p_dimension);
  end if;
  return true;
end $$;

-- Return the inner product of two embeddings. Stored embeddings have the length 1, so this is their cosine.
create or replace function {}.compute_inner_product(p_a real[], p_b real[]) returns double precision
language sql immutable parallel safe set search_path = '' as $$
  select sum(x * y)::double precision from unnest(p_a, p_b) as u (x, y)
$$;

-- Return how search by meaning works in this database: `pgvector` or `signatures`.
create or replace function {}.get_clip_search_mode() returns text
language sql stable set search_path = '' as $$
  select case when {}.find_vector_schema() is null then 'signatures' else 'pgvector' end
$$;

-- List the passages of a user that are nearest to an embedding, nearest first.
create or replace function {}.find_near_passages(
  p_user_id uuid, p_embedding real[], p_signature bit(256), p_model text, p_limit integer, p_mode text default null)
returns table (clip_id text, number integer, similarity double precision)
language plpgsql stable set search_path = '' as $$
declare
  v_candidates constant integer := 400;
  v_max_scanned constant integer := 20000; -- passages of a user; more use the HNSW index
  v_vector text := case when p_mode is distinct from 'signatures' then {}.find_vector_schema() end;
  v_dimension integer := cardinality(p_embedding);
  v_similarity text := '{}.compute_inner_product(p.embedding, $2)';
begin
  if v_vector is not null then
    v_similarity := format('1 - (p.embedding::%1$s.vector(%2$s) operator(%1$s.<=>) $2::%1$s.vector(%2$s))',
      v_vector, v_dimension);
    if to_regclass('{}.clip_passages_hnsw_' || v_dimension) is not null and (select count(*) from (
      select from {}.clip_passages p where p.user_id = p_user_id and p.embedding_model = p_model
      limit v_max_scanned + 1) as u) > v_max_scanned
    then
      -- The index has the passages of all users. It is read until enough of this user are found.
      perform set_config('hnsw.iterative_scan', 'strict_order', true), set_config('hnsw.ef_search', '200', true),
        set_config('hnsw.max_scan_tuples', '100000', true);
      return query execute format(
        'select p.clip_id::text, p.number, %3$s from {}.clip_passages p
         where p.user_id = $1 and p.embedding_model = $3 and p.embedding_dimension = %2$s
         order by p.embedding::%1$s.vector(%2$s) operator(%1$s.<=>) $2::%1$s.vector(%2$s) limit $4',
        v_vector, v_dimension, v_similarity) using p_user_id, p_embedding, p_model, p_limit;
      return;
    end if;
  end if;
  return query execute format(
    'select p.clip_id::text, p.number, %s as similarity from (
       select c.clip_id, c.number from {}.clip_passages c where c.user_id = $1 and c.embedding_model = $3
       order by bit_count(c.signature # $5) limit $6) as near
     join {}.clip_passages p on p.clip_id = near.clip_id and p.number = near.number
     where p.embedding_dimension = cardinality($2) order by similarity desc limit $4', v_similarity)
    using p_user_id, p_embedding, p_model, p_limit, p_signature, greatest(v_candidates, p_limit);
end $$;

-- Search the clips of a user. Words must all occur, or begin a word, in a passage or in title, tags, author and summary.
-- The embedding of the query finds passages of a similar meaning; without it, only words count. Both results are merged
-- by their places. Users search their own clips; services name the user. A hit has the passage that fits best.
create or replace function {}.search_clips(
  p_query text, p_embedding real[] default null, p_signature bit(256) default null, p_model text default null,
  p_limit integer default 20, p_user_id uuid default null)
returns table (clip_id text, number integer, start_s double precision, end_s double precision, body text,
  similarity double precision, matches_words boolean, score double precision)
language plpgsql stable set search_path = '' as $$
#variable_conflict use_column
declare
  v_hits_of_each constant integer := 100;
  v_max_ranked constant integer := 1000; -- matches of words that are ranked, so that a common word stays fast
  v_min_similarity constant double precision := 0.1;
  v_rank_offset constant integer := 60; -- of the reciprocal rank fusion
  v_user uuid := coalesce(holdfast.get_user_uuid_from_jwt_claims(), p_user_id);
  v_words tsquery := to_tsquery('simple', (
    select string_agg(w.word || ':*', ' & ') from (
      select m[1] as word from regexp_matches(left(lower(p_query), 500), '[[:alnum:]]+', 'g') as m limit 12) as w));
begin
  return query
  with near as (
    select n.clip_id, n.number, n.similarity, row_number() over (order by n.similarity desc) as place
    from {}.find_near_passages(v_user, p_embedding, p_signature, p_model, v_hits_of_each) as n
    where p_embedding is not null and n.similarity >= v_min_similarity
  ), worded as (
    select w.clip_id, w.number, row_number() over (order by w.rank desc, w.clip_id) as place from (
      select p.clip_id::text as clip_id, p.number, ts_rank_cd(p.search, v_words) as rank from (
        select * from {}.clip_passages c where c.user_id = v_user and c.search @@ v_words limit v_max_ranked) as p
      union all
      select c.id::text, null, ts_rank_cd(c.search, v_words) from (
        select * from {}.clipnest_videos v where v.user_id = v_user and v.search @@ v_words limit v_max_ranked) as c
    ) as w order by w.rank desc limit v_hits_of_each
  ), merged as (
    select coalesce(n.clip_id, w.clip_id) as clip_id, coalesce(n.number, w.number) as number, n.similarity,
      w.place is not null as matches_words,
      coalesce(1.0 / (v_rank_offset + n.place), 0) + coalesce(1.0 / (v_rank_offset + w.place), 0) as score
    from near n full join worded w on w.clip_id = n.clip_id and w.number = n.number
  ), best as (
    select m.clip_id, max(m.score) + coalesce(sum(m.score) filter (where m.number is null), 0) * 0.5 as score,
      bool_or(m.matches_words) as matches_words, max(m.similarity) as similarity,
      (array_agg(m.number order by m.score desc) filter (where m.number is not null))[1] as number
    from merged m group by m.clip_id
    order by 2 desc, m.clip_id limit least(greatest(coalesce(p_limit, 20), 1), 100)
  )
  select b.clip_id, p.number, p.start_s, p.end_s, p.body, b.similarity, b.matches_words, b.score::double precision
  from best b left join {}.clip_passages p on p.clip_id = {}.parse_clip_id(b.clip_id) and p.number = b.number
  order by b.score desc, b.clip_id;
end $$;
