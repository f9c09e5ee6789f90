"""Local embedding provider with the word vectors of WordLlama: 256 dimensions, without network or key.

It averages vectors of words, so it knows which words are related and nothing of grammar or context. "cat" and
"kitten" come out as related (0.37), "cat" and "tax" do not (0.05). For better search, set `embeddings_url`.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import RefusedError
from holdfast.systems.providers.metering import CallMeter
from holdfast.systems.providers.protocols import TextEmbeddings
from holdfast.systems.providers.usage import ProviderUsage, UsageAccount

LOCAL_EMBEDDINGS_MODEL = "wordllama-l2-supercat-256"


class LocalEmbeddingProvider:
    """An `EmbeddingProvider` that runs in the worker process. It loads its vectors at first use."""

    def __init__(self, meter: CallMeter | None = None) -> None:
        self._meter = meter or CallMeter.create_local("embeddings", LOCAL_EMBEDDINGS_MODEL)
        self._lock = asyncio.Lock()
        self._model: Any = None

    @property
    def limit_key(self) -> str:
        return "embeddings:local"

    async def close(self) -> None:
        """Release the vectors."""
        self._model = None

    async def embed_texts(self, texts: Sequence[str], *, account: UsageAccount) -> TextEmbeddings:
        async with self._meter.measure_call(account) as call:
            call.usage = ProviderUsage()
            async with self._lock:
                self._model = self._model or await asyncio.to_thread(_load_word_vectors)
                vectors = await asyncio.to_thread(_embed_texts, self._model, texts)
        return TextEmbeddings(vectors=vectors, model=LOCAL_EMBEDDINGS_MODEL)


def _load_word_vectors() -> Any:
    try:
        wordllama = importlib.import_module("wordllama")
    except ImportError:
        raise RefusedError(
            "Local embeddings are not installed.",
            fix="pip install 'holdfast[embeddings]', or set embeddings_url to an embeddings server.",
        ) from None
    # The vectors are inside the package. Nothing is downloaded.
    folder = Path(str(wordllama.__file__)).parent
    return wordllama.WordLlama.load(cache_dir=folder, disable_download=True)


def _embed_texts(model: Any, texts: Sequence[str]) -> list[list[float]]:
    if not texts:
        return []
    return [[float(value) for value in vector] for vector in model.embed(list(texts))]
