"""Texts that a language model sends in parts: the parts, the whole, the tokens, and what can go wrong."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator

import pytest
from provider_server import (
    LOOPBACK_POLICY,
    ProviderResponse,
    ProviderServer,
    make_chat_response,
    make_config,
    run_provider_server,
)

from holdfast.systems.providers import (
    CallMeter,
    CallRecord,
    ProviderError,
    ProviderRateLimitedError,
    ProviderResponseError,
    ProviderUnavailableError,
    StreamingTextProvider,
    UsageAccount,
)
from holdfast.systems.providers.openai_text import MAX_GENERATED_TEXT_CHARS, OpenAITextProvider


class RecordedCalls:
    """Keeps what would be recorded in the database."""

    def __init__(self) -> None:
        self.calls: list[CallRecord] = []

    async def record_call(self, record: CallRecord) -> None:
        self.calls.append(record)


ACCOUNT = UsageAccount(owner="ann")
PARTS = ["Two ", "people ", "méet", ".\n\nThey talk."]


def make_stream(parts: list[str], *, done: bool = True, head: bytes = b": a comment\n\n") -> ProviderResponse:
    chunks = [
        {"model": "test-model", "choices": [{"index": 0, "delta": {"content": part}}]} for part in parts
    ]
    last = {"model": "test-model", "choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 7}}
    lines = [f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n" for chunk in [*chunks, last]]
    content = head + "".join(lines).encode() + (b"data: [DONE]\n\n" if done else b"")
    return 200, {"content-type": "text/event-stream; charset=utf-8"}, content


@pytest.fixture
async def server() -> AsyncGenerator[ProviderServer]:
    async with run_provider_server() as server:
        yield server


async def stream(server: ProviderServer, recorded: RecordedCalls | None = None) -> tuple[str, list[str]]:
    meter = CallMeter("text", "127.0.0.1", "m", recorder=recorded)
    provider = OpenAITextProvider(make_config(server, "text"), meter=meter, policy=LOOPBACK_POLICY)
    parts: list[str] = []
    try:
        text = await provider.stream_text("Write.", "Ann <b>", account=ACCOUNT, on_text=parts.append)
    finally:
        await provider.close()
    return text.text, parts


async def test_parts_arrive_one_by_one_and_the_tokens_are_counted(server: ProviderServer) -> None:
    server.respond = lambda *_: make_stream(PARTS)
    recorded = RecordedCalls()
    text, parts = await stream(server, recorded)
    assert (text, parts) == ("".join(PARTS), PARTS)
    [(_, _, body)] = server.requests
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert "<b>" not in body["messages"][1]["content"]
    last = recorded.calls[-1]
    assert (last.status, last.usage.tokens_in, last.usage.tokens_out) == ("succeeded", 12, 7)


async def test_a_server_that_does_not_stream_gives_the_whole_text(server: ProviderServer) -> None:
    server.respond = lambda *_: make_chat_response("All at once.")
    assert await stream(server) == ("All at once.", ["All at once."])


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (make_stream(PARTS, done=False), ProviderUnavailableError),
        (make_stream([]), ProviderResponseError),
        (make_stream(["x" * (MAX_GENERATED_TEXT_CHARS + 1)]), ProviderResponseError),
        (make_stream(PARTS, head=b"data: {not json}\n\n"), ProviderResponseError),
        ((429, {"retry-after": "3"}, b""), ProviderRateLimitedError),
        ((500, {}, b""), ProviderUnavailableError),
        ((200, {"content-type": "text/html"}, b"<p>"), ProviderResponseError),
        ((200, {"content-type": "text/event-stream", "content-length": "99", "x-cut": "1"}, b"data: {"),
         ProviderUnavailableError),
    ],
    ids=["no end", "empty", "too long", "malformed", "429", "500", "html", "cut"],
)  # fmt: skip
async def test_a_broken_stream_is_an_error_and_never_half_a_text(
    server: ProviderServer, response: ProviderResponse, error: type[ProviderError]
) -> None:
    server.respond = lambda *_: response
    with pytest.raises(error):
        await stream(server)


async def test_the_usage_of_a_broken_stream_is_unknown(server: ProviderServer) -> None:
    server.respond = lambda *_: make_stream(PARTS, done=False)
    recorded = RecordedCalls()
    with pytest.raises(ProviderUnavailableError):
        await stream(server, recorded)
    assert recorded.calls[-1].status == "unknown"  # the provider may charge for it


def test_the_remote_provider_streams() -> None:
    assert issubclass(OpenAITextProvider, StreamingTextProvider)
