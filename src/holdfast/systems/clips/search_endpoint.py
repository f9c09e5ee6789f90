"""The endpoint that searches the clips of a user by words and by meaning."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast import Client
from holdfast.errors import InvalidError, RefusedError
from holdfast.server import api_operation, get_client, json_response, parse_query, transaction_as_caller
from holdfast.systems.clips import clip_queries, passage_queries
from holdfast.systems.clips.clip_endpoints import CLIPS_API_PATH
from holdfast.systems.clips.clip_views import Clip, build_clips
from holdfast.systems.clips.embedding import MAX_QUERY_CHARS
from holdfast.systems.clips.passages import normalize_vector
from holdfast.systems.providers import ProviderError, ProviderRegistry, UsageAccount
from holdfast.systems.request_context import get_systems_schema, require_owner_id

MAX_HITS: Final = 100
_log = logging.getLogger("holdfast.systems.clips")


class ClipSearchQuery(msgspec.Struct, forbid_unknown_fields=True):
    """What to search for, and how many clips to return."""

    q: str
    limit: int = 20


class ClipHit(msgspec.Struct, kw_only=True):
    """A clip that fits, and the passage of its transcript that fits best, with its time in seconds.

    `similarity` is the cosine of the meanings, from -1 to 1, or None if only words were compared.
    """

    clip: Clip
    passage: str | None
    start_s: float | None
    end_s: float | None
    similarity: float | None
    matches_words: bool
    score: float


class ClipSearchResult(msgspec.Struct, kw_only=True):
    """Hits, the best first. If only words were searched, `by_meaning` is false and `notice` says why."""

    hits: list[ClipHit]
    by_meaning: bool
    notice: str | None = None


class SearchEndpoint:
    """Searches clips. The provider of embeddings opens with the first search."""

    def __init__(self) -> None:
        self._providers: ProviderRegistry | None = None

    def create_routes(self) -> list[BaseRoute]:
        operation = api_operation(
            "Search your clips by words and by meaning",
            tag="clips",
            scope="jobs",
            query=ClipSearchQuery,
            response=ClipSearchResult,
        )
        return [Route(f"{CLIPS_API_PATH}/search", operation(self.search_clips), methods=["GET"])]

    async def search_clips(self, request: Request) -> Response:
        owner, query = await require_owner_id(request), parse_query(request, ClipSearchQuery)
        text = query.q.strip()
        if not text or len(text) > MAX_QUERY_CHARS or "\0" in text:
            raise InvalidError(f"q must be a text of 1 to {MAX_QUERY_CHARS} characters.", field="q")
        if not 1 <= query.limit <= MAX_HITS:
            raise InvalidError(f"limit must be from 1 to {MAX_HITS}.", field="limit")
        client, schema = get_client(request), get_systems_schema(request)
        vector, model, notice = await self._embed_query(client, text, owner)
        async with transaction_as_caller(request) as connection:
            rows = await passage_queries.search_clips(
                connection, schema, owner, text, vector, model, query.limit
            )
            clip_ids = [row["clip_id"] for row in rows]
            clip_rows = await clip_queries.list_clips_by_id(connection, schema, owner, clip_ids)
        clips = {clip.id: clip for clip in await build_clips(client, clip_rows)}
        hits = [build_hit(clips[row["clip_id"]], row) for row in rows if row["clip_id"] in clips]
        return json_response(ClipSearchResult(hits=hits, by_meaning=vector is not None, notice=notice))

    async def _embed_query(
        self, client: Client, text: str, owner: str
    ) -> tuple[Sequence[float] | None, str | None, str | None]:
        """Return the embedding of a query and its model, or the reason why only words are searched."""
        if self._providers is None:
            self._providers = ProviderRegistry.for_client(client)
        try:
            answer = await self._providers.embeddings.embed_texts(
                [text], account=UsageAccount(owner=owner, source="clip search")
            )
        except (ProviderError, RefusedError) as error:
            _log.warning("A search of clips used words only: %s", error)
            return None, None, f"Only words were searched. {error.message}"
        return normalize_vector(answer.vectors[0]), answer.model, None


def build_hit(clip: Clip, row: dict[str, Any]) -> ClipHit:
    """Build a hit from a row of the SQL function `search_clips`."""
    return ClipHit(
        clip=clip,
        passage=row["body"],
        start_s=row["start_s"],
        end_s=row["end_s"],
        similarity=row["similarity"],
        matches_words=row["matches_words"],
        score=row["score"],
    )
