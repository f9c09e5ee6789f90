"""Embed the passages of a clip and the clip as a whole, in small parts that are kept as they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from holdfast import Client
from holdfast.systems.clips import passage_queries as queries
from holdfast.systems.clips.passages import Passage, normalize_vector
from holdfast.systems.clips.provider_gate import ProviderGate
from holdfast.systems.providers import EmbeddingProvider, UsageAccount

PASSAGES_PER_CALL: Final = 64
MAX_QUERY_CHARS: Final = 1_000


class ClipEmbedder:
    """Embeds texts with one provider. Dimensions whose index exists are remembered."""

    def __init__(self, client: Client, provider: EmbeddingProvider) -> None:
        self._client = client
        self._schema = client.settings.systems_schema
        self._provider = provider
        self._gate = ProviderGate()
        self._indexed_dimensions: set[int] = set()

    async def embed_texts(self, texts: Sequence[str], account: UsageAccount) -> tuple[list[list[float]], str]:
        """Return the embeddings of texts, scaled to the length 1, and the name of the model."""

        async def send() -> tuple[list[list[float]], str]:
            answer = await self._provider.embed_texts(texts, account=account)
            return [normalize_vector(vector) for vector in answer.vectors], answer.model

        return await self._gate.call(send)

    async def embed_passages(
        self, clip_id: str, owner: UUID, passages: Sequence[Passage], model: str, account: UsageAccount
    ) -> None:
        """Embed and store the passages that have no embedding of `model` yet."""
        async with self._client.connection() as connection:
            done = await queries.count_embedded_passages(connection, self._schema, clip_id, model)
        for start in range(done, len(passages), PASSAGES_PER_CALL):
            part = passages[start : start + PASSAGES_PER_CALL]
            vectors, _ = await self.embed_texts([passage.text for passage in part], account)
            await self._ensure_index(len(vectors[0]))
            async with self._client.transaction() as connection:
                await queries.save_passages(connection, self._schema, clip_id, owner, part, vectors, model)
        async with self._client.connection() as connection:
            await queries.delete_passages_from(connection, self._schema, clip_id, len(passages))

    async def _ensure_index(self, dimension: int) -> None:
        if dimension not in self._indexed_dimensions:
            async with self._client.connection() as connection:
                await queries.ensure_index(connection, self._schema, dimension)
            self._indexed_dimensions.add(dimension)
