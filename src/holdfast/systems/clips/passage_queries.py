"""SQL queries of passages and embeddings: store, find what is missing, and search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from holdfast.systems.clips.passages import Passage, compute_signature
from holdfast.systems.tables import qualify_tables

Row = dict[str, Any]


async def count_embedded_passages(connection: Any, schema: str, clip_id: str, model: str) -> int:
    """Return how many passages of a clip have an embedding of this model. They are embedded in order."""
    count: int = await connection.fetchval(
        qualify_tables(
            "select count(*) from {}.clip_passages where clip_id = {}.parse_clip_id($1)"
            " and embedding_model = $2",
            schema,
        ),
        clip_id,
        model,
    )
    return count


async def ensure_index(connection: Any, schema: str, dimension: int) -> None:
    """Create the index for embeddings of this dimension if it is missing and pgvector is there."""
    await connection.execute(qualify_tables("select {}.ensure_clip_index($1)", schema), dimension)


async def save_passages(
    connection: Any,
    schema: str,
    clip_id: str,
    owner: UUID,
    passages: Sequence[Passage],
    vectors: Sequence[Sequence[float]],
    model: str,
) -> None:
    """Store passages with their embeddings, which have the length 1. Existing ones are replaced."""
    await connection.executemany(
        qualify_tables(
            "insert into {}.clip_passages (clip_id, number, user_id, start_s, end_s, body, embedding,"
            " embedding_model, embedding_dimension, signature)"
            " select c.id, $2, c.user_id, $4, $5, $6, $7::real[], $8, cardinality($7::real[]),"
            " $9::text::bit(256) from {}.clipnest_videos c"
            " where c.id = {}.parse_clip_id($1) and c.user_id = $3"
            " on conflict (clip_id, number) do update set start_s = excluded.start_s, end_s = excluded.end_s,"
            " body = excluded.body, embedding = excluded.embedding,"
            " embedding_model = excluded.embedding_model,"
            " embedding_dimension = excluded.embedding_dimension, signature = excluded.signature",
            schema,
        ),
        [
            (
                *(clip_id, passage.number, owner, passage.start, passage.end, passage.text),
                *(list(vector), model, compute_signature(vector)),
            )
            for passage, vector in zip(passages, vectors, strict=True)
        ],
    )


async def delete_passages_from(connection: Any, schema: str, clip_id: str, number: int) -> None:
    """Delete the passages of a clip from a number on: those of a longer transcript that it had before."""
    await connection.execute(
        qualify_tables(
            "delete from {}.clip_passages where clip_id = {}.parse_clip_id($1) and number >= $2", schema
        ),
        clip_id,
        number,
    )


async def find_vector_column_dimension(connection: Any, schema: str) -> int | None:
    """Return the dimension of the column `embedding` if it is a `vector` of pgvector with a fixed one."""
    dimension: int | None = await connection.fetchval(
        "select nullif(a.atttypmod, -1) from pg_catalog.pg_attribute a"
        " join pg_catalog.pg_type t on t.oid = a.atttypid where a.attrelid = $1::text::regclass"
        " and a.attname = 'embedding' and t.typname = 'vector'",
        qualify_tables("{}.clipnest_videos", schema),
    )
    return dimension


async def list_outdated_clips(connection: Any, schema: str, model: str, limit: int) -> list[Row]:
    """List finished clips whose embeddings are of another model."""
    rows = await connection.fetch(
        qualify_tables(
            "select id::text as id, user_id, title, summary, to_jsonb(tags)::text as tags, transcript,"
            " transcript_segments::text as segments from {}.clipnest_videos where processing_status = 'done'"
            " and transcript_segments is not null and embedding_model is distinct from $1"
            " order by id limit $2",
            schema,
        ),
        model,
        limit,
    )
    return [dict(row) for row in rows]


async def count_outdated_clips(connection: Any, schema: str, model: str) -> int:
    """Count finished clips whose embeddings are of another model."""
    count: int = await connection.fetchval(
        qualify_tables(
            "select count(*) from {}.clipnest_videos where processing_status = 'done'"
            " and transcript_segments is not null and embedding_model is distinct from $1",
            schema,
        ),
        model,
    )
    return count


async def search_clips(
    connection: Any,
    schema: str,
    owner: str,
    text: str,
    vector: Sequence[float] | None,
    model: str | None,
    limit: int,
) -> list[Row]:
    """Search the clips of a user by words and, with the embedding of the query, by meaning."""
    signature = None if vector is None else compute_signature(vector)
    rows = await connection.fetch(
        qualify_tables(
            "select * from {}.search_clips($1, $2::real[], $3::text::bit(256), $4, $5, $6)", schema
        ),
        text,
        None if vector is None else list(vector),
        signature,
        model,
        limit,
        UUID(owner),
    )
    return [dict(row) for row in rows]
