"""A server that answers as a scraping API, a language model and an embeddings server, as the test decides."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from provider_server import ProviderResponse, ProviderServer, make_chat_response

JSON_TYPE = {"content-type": "application/json"}
SENTENCES = (
    "Today we sharpen a kitchen knife on a wet stone.",
    "Hold the blade at fifteen degrees and move it slowly.",
    "A dull knife is dangerous because it slips.",
)


def make_embedding(text: str, dimension: int = 64) -> list[float]:
    """Return a vector in which texts with the same words are near each other."""
    vector = [0.0] * dimension
    for word, count in Counter(re.findall(r"\w+", text.lower())).items():
        digest = hashlib.sha256(word.encode()).digest()
        for place in range(0, 16, 2):
            vector[digest[place] % dimension] += count * (1 if digest[place + 1] % 2 else -1)
    return vector if any(vector) else [1.0] * dimension


@dataclass
class ClipProviders:
    """The answers of the server. `failures` has responses that are sent first, by kind."""

    failures: dict[str, list[ProviderResponse]] = field(default_factory=dict[str, list[ProviderResponse]])
    calls: Counter[str] = field(default_factory=Counter[str])
    scraped: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    answers: list[str] = field(default_factory=list[str])
    dimension: int = 64

    def attach(self, server: ProviderServer) -> None:
        server.respond = self.respond

    def respond(self, path: str, body: Any) -> ProviderResponse:
        kind = "text" if "chat" in path else "embeddings" if "embeddings" in path else "scraping"
        self.calls[kind] += 1
        if self.failures.get(kind):
            return self.failures[kind].pop(0)
        if kind == "scraping":
            [url] = parse_qs(urlsplit(path).query)["url"]
            return 200, JSON_TYPE, json.dumps(self.scraped.get(url) or make_scraped_video(url)).encode()
        if kind == "embeddings":
            rows = [{"index": number, "embedding": make_embedding(text, self.dimension)}
                    for number, text in enumerate(body["input"])]  # fmt: skip
            answer = {"model": f"words-{self.dimension}", "data": rows, "usage": {"prompt_tokens": 5}}
            return 200, JSON_TYPE, json.dumps(answer).encode()
        if self.answers:
            return make_chat_response(self.answers.pop(0))
        return make_chat_response(
            json.dumps({"title": "Knives", "summary": "How to sharpen a knife.", "tags": ["Knife", "#stone"]})
        )


def make_scraped_video(url: str, sentences: tuple[str, ...] = SENTENCES) -> dict[str, Any]:
    return {
        "success": True,
        "title": f"Video {url[-12:]}",
        "channel": {"title": "A cook"},
        "durationSeconds": 30,
        "language": "en",
        "transcript": [
            {"text": text, "startMs": str(number * 10_000), "endMs": str(number * 10_000 + 9_000)}
            for number, text in enumerate(sentences)
        ],
    }
