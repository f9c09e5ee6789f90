"""Embedding provider that calls an OpenAI-compatible endpoint (`/embeddings`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from holdfast.systems.providers.errors import ProviderResponseError
from holdfast.systems.providers.http_client import HttpProvider
from holdfast.systems.providers.openai_text import MAX_MODEL_NAME_CHARS, TokenUsage
from holdfast.systems.providers.protocols import TextEmbeddings
from holdfast.systems.providers.usage import ProviderUsage, UsageAccount

MAX_EMBEDDINGS_RESPONSE_BYTES = 64 * 1024 * 1024
MAX_TEXTS_PER_REQUEST = 128


class EmbeddingRow(msgspec.Struct):
    """The vector of one text of a request."""

    index: int
    embedding: list[float]


class EmbeddingResponse(msgspec.Struct):
    """The response of `/embeddings`."""

    data: list[EmbeddingRow]
    model: str | None = None
    usage: TokenUsage | None = None


class OpenAIEmbeddingProvider(HttpProvider):
    """An `EmbeddingProvider` that calls an OpenAI-compatible server."""

    max_response_bytes = MAX_EMBEDDINGS_RESPONSE_BYTES

    async def embed_texts(self, texts: Sequence[str], *, account: UsageAccount) -> TextEmbeddings:
        vectors: list[list[float]] = []
        model = self._config.model
        for start in range(0, len(texts), MAX_TEXTS_PER_REQUEST):
            part = texts[start : start + MAX_TEXTS_PER_REQUEST]
            response = await self._request_part(part, account)
            vectors += order_vectors(response.data, len(part))
            model = response.model or model
        if len({len(vector) for vector in vectors}) > 1:
            raise ProviderResponseError("The vectors of the embeddings provider have different lengths.")
        return TextEmbeddings(vectors=vectors, model=model[:MAX_MODEL_NAME_CHARS])

    async def _request_part(self, texts: Sequence[str], account: UsageAccount) -> EmbeddingResponse:
        body = {"model": self._config.model, "input": list(texts), "encoding_format": "float"}
        async with self._http.open_call(account) as call:
            response = call.decode(await call.post_json("embeddings", body), EmbeddingResponse)
            tokens = response.usage or TokenUsage()
            call.set_usage(ProviderUsage(tokens_in=tokens.prompt_tokens, tokens_out=0))
        return response


def order_vectors(rows: Sequence[EmbeddingRow], count: int) -> list[list[float]]:
    """Return the vectors in the order of the texts. Raise ProviderResponseError if one is missing."""
    by_index = {row.index: row.embedding for row in rows}
    if len(rows) != count or by_index.keys() != set(range(count)):
        raise ProviderResponseError("The embeddings provider did not return one vector for each text.")
    vectors = [by_index[number] for number in range(count)]
    if not all(vector and all(math.isfinite(value) for value in vector) for vector in vectors):
        raise ProviderResponseError("The embeddings provider returned an empty vector or invalid numbers.")
    return vectors
