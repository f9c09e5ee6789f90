"""What every remote client of a provider does with the answers of its server: one set of tests for all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from provider_server import (
    LOOPBACK_POLICY,
    ProviderResponse,
    ProviderServer,
    make_config,
    respond_by_default,
    run_provider_server,
)

from holdfast.egress import EgressPolicy
from holdfast.errors import RateLimited, Reject
from holdfast.systems.providers import (
    CallMeter,
    CallRecord,
    ImageMeasurements,
    Provider,
    ProviderKind,
    ProviderRateLimitedError,
    ProviderRefusedError,
    ProviderResponseError,
    ProviderUnavailableError,
    UsageAccount,
    translate_provider_errors,
)
from holdfast.systems.providers.http_scraping import HttpScrapingProvider
from holdfast.systems.providers.openai_embeddings import OpenAIEmbeddingProvider
from holdfast.systems.providers.openai_speech import OpenAISpeechProvider
from holdfast.systems.providers.openai_text import OpenAITextProvider
from holdfast.systems.providers.openai_vision import OpenAICaptionProvider
from holdfast.systems.providers.prices import ModelPrice, PriceTable

JSON_HEADERS = {"content-type": "application/json"}
ACCOUNT = UsageAccount(owner="ann", source="a test")
PRICES_BY_UNIT = {
    "tokens_in": "tokens_in",
    "tokens_out": "tokens_out",
    "audio_s": "audio_minute",
    "images": "image",
}


@dataclass(frozen=True)
class ClientUnderTest:
    """A remote client: how it is made, one call of it, and the units that a call must report."""

    kind: ProviderKind
    create: Callable[..., Any]
    call: Callable[[Any], Awaitable[object]]
    units: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict[str, Any])


CLIENTS = [
    ClientUnderTest(
        "text",
        OpenAITextProvider,
        lambda provider: provider.generate_text("Write.", "Ana", account=ACCOUNT),
        ("tokens_in", "tokens_out"),
    ),
    ClientUnderTest(
        "vision",
        OpenAICaptionProvider,
        lambda provider: provider.describe_image(
            b"x", "image/webp", ImageMeasurements(width=1, height=1), account=ACCOUNT
        ),
        ("tokens_in", "tokens_out", "images"),
    ),
    ClientUnderTest(
        "embeddings",
        OpenAIEmbeddingProvider,
        lambda provider: provider.embed_texts(["one", "three"], account=ACCOUNT),
        ("tokens_in", "tokens_out"),
    ),
    ClientUnderTest(
        "speech",
        OpenAISpeechProvider,
        lambda provider: provider.synthesize_speech("Hello, this is long enough.", "en", account=ACCOUNT),
        ("audio_s",),
        {"voice": "calm"},
    ),
    ClientUnderTest(
        "scraping",
        HttpScrapingProvider,
        lambda provider: provider.scrape_media("https://youtu.be/x", account=ACCOUNT),
        (),
    ),
]


@dataclass
class MemoryRecorder:
    """Keeps the records of calls."""

    records: list[CallRecord] = field(default_factory=list[CallRecord])
    error: Exception | None = None

    async def record_call(self, record: CallRecord) -> None:
        if self.error is not None:
            raise self.error
        self.records.append(record)

    @property
    def statuses(self) -> list[str]:
        return [record.status for record in self.records]


@dataclass
class ContractHarness:
    """A client under test, its server, and what it recorded."""

    client: ClientUnderTest
    server: ProviderServer
    recorder: MemoryRecorder = field(default_factory=MemoryRecorder)
    providers: list[Provider] = field(default_factory=list[Provider])

    def create(self, *, timeout_s: float = 30, policy: EgressPolicy = LOOPBACK_POLICY) -> Any:
        kind = self.client.kind
        price = ModelPrice(request=0.001, **{PRICES_BY_UNIT[unit]: 2.0 for unit in self.client.units})
        prices = PriceTable({"m": price})
        meter = CallMeter(kind, "127.0.0.1", "m", recorder=self.recorder, prices=prices)
        config = make_config(self.server, kind, timeout_s=timeout_s)
        provider = self.client.create(config, meter=meter, policy=policy, **self.client.options)
        self.providers.append(provider)
        return provider

    async def call(self, provider: Any = None, **options: Any) -> object:
        return await self.client.call(provider or self.create(**options))


@pytest.fixture(params=CLIENTS, ids=lambda client: client.kind)
async def harness(request: pytest.FixtureRequest) -> AsyncGenerator[ContractHarness]:
    async with run_provider_server() as server:
        harness = ContractHarness(request.param, server)
        yield harness
        for provider in harness.providers:
            await provider.close()


async def test_a_call_is_recorded_before_and_after_with_its_usage_and_cost(harness: ContractHarness) -> None:
    await harness.call()
    started, ended = harness.recorder.records
    assert (started.status, ended.status, started.id) == ("started", "succeeded", ended.id)
    assert (ended.kind, ended.provider, ended.model) == (harness.client.kind, "127.0.0.1", "m")
    assert ended.account == ACCOUNT
    assert all(getattr(ended.usage, unit) is not None for unit in harness.client.units)
    assert ended.cost is not None
    assert ended.cost >= Decimal("0.001") + Decimal(bool(harness.client.units)) / 10**9
    assert ended.duration is not None
    [(_, headers, _)] = harness.server.requests
    assert headers["authorization"] == "Bearer sk-test"


@pytest.mark.parametrize(("header", "delay_s"), [("11", 11), ("", 5), ("soon", 5)])
async def test_429_pauses_the_client_for_as_long_as_the_server_asks(
    harness: ContractHarness, header: str, delay_s: float
) -> None:
    harness.server.respond = lambda *_: (429, {"retry-after": header}, b"slow down, sk-test")
    provider = harness.create()
    with pytest.raises(ProviderRateLimitedError) as caught:
        await harness.call(provider)
    assert caught.value.retry_after == timedelta(seconds=delay_s)
    harness.server.respond = respond_by_default
    with pytest.raises(ProviderRateLimitedError) as again:  # nothing is sent in the meantime
        await harness.call(provider)
    assert again.value.retry_after is not None
    assert timedelta(seconds=delay_s - 4) < again.value.retry_after <= timedelta(seconds=delay_s)
    assert len(harness.server.requests) == 1
    assert harness.recorder.statuses == ["started", "failed"]
    assert harness.recorder.records[-1].cost == 0


async def test_the_pause_ends(harness: ContractHarness) -> None:
    harness.server.respond = lambda *_: (429, {"retry-after": "0.2"}, b"")
    provider = harness.create()
    with pytest.raises(ProviderRateLimitedError):
        await harness.call(provider)
    harness.server.respond = respond_by_default
    await asyncio.sleep(0.25)
    await harness.call(provider)


@pytest.mark.parametrize("status", [408, 500, 502, 503, 504, 529])
async def test_server_errors_can_be_retried(harness: ContractHarness, status: int) -> None:
    headers = {**JSON_HEADERS, "retry-after": "7"}
    harness.server.respond = lambda *_: (status, headers, b'{"error": "sk-test"}')
    with pytest.raises(ProviderUnavailableError) as caught:
        await harness.call()
    assert caught.value.retry
    assert caught.value.retry_after == timedelta(seconds=7)
    assert "sk-test" not in str(caught.value)
    assert harness.recorder.records[-1].cost == 0  # an error is not charged


@pytest.mark.parametrize("status", [302, 400, 401, 403, 404, 413, 422])
async def test_refusals_cannot_be_retried(harness: ContractHarness, status: int) -> None:
    headers = {"location": "http://127.0.0.1:1/", **JSON_HEADERS}
    harness.server.respond = lambda *_: (status, headers, b"the secret prompt sk-test")
    with pytest.raises(ProviderRefusedError) as caught:
        await harness.call()
    assert not caught.value.retry
    assert "secret" not in str(caught.value)
    assert harness.recorder.statuses == ["started", "failed"]


async def test_a_server_that_does_not_answer(harness: ContractHarness) -> None:
    harness.server.respond = lambda *_: None
    with pytest.raises(ProviderUnavailableError, match=r"did not respond within 0\.3 seconds"):
        await harness.call(timeout_s=0.3)
    # The server may have charged for the answer that never came.
    assert harness.recorder.statuses == ["started", "unknown"]
    assert harness.recorder.records[-1].cost is None


async def test_an_answer_that_stalls(harness: ContractHarness) -> None:
    harness.server.respond = lambda *_: (200, {**_good_headers(harness), "content-length": "999"}, b"{")
    with pytest.raises(ProviderUnavailableError, match="did not respond"):
        await harness.call(timeout_s=0.3)
    assert harness.recorder.statuses == ["started", "unknown"]


async def test_a_connection_that_is_cut(harness: ContractHarness) -> None:
    cut = {**_good_headers(harness), "content-length": "999", "x-cut": "1"}
    harness.server.respond = lambda *_: (200, cut, b'{"choices"')
    with pytest.raises(ProviderUnavailableError):
        await harness.call()
    assert harness.recorder.statuses == ["started", "unknown"]


async def test_a_server_that_is_away(harness: ContractHarness) -> None:
    harness.server.url = "http://127.0.0.1:9/v1"
    with pytest.raises(ProviderUnavailableError, match="cannot be reached"):
        await harness.call()


def _good_headers(harness: ContractHarness) -> dict[str, str]:
    return {"content-type": "audio/wav"} if harness.client.kind == "speech" else JSON_HEADERS


MALFORMED_BODIES = [
    b"",
    b"not json",
    b"[]",
    b"null",
    b"{}",
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b'{"choices": [], "data": []}',
    b'{"choices": [{"text": "an old protocol"}], "data": [{"embedding": [1]}]}',
    b'{"choices": [{"message": {"content": "  \\u0000 "}}], "data": [{"index": 0, "embedding": []}]}',
    b'{"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": -5}, "data": "x"}',
]


@pytest.mark.parametrize("body", MALFORMED_BODIES, ids=range(len(MALFORMED_BODIES)))
async def test_malformed_answers(harness: ContractHarness, body: bytes) -> None:
    harness.server.respond = lambda *_: (200, _good_headers(harness), body)
    with pytest.raises(ProviderResponseError) as caught:
        await harness.call()
    assert caught.value.retry
    assert harness.recorder.statuses[0] == "started"
    assert harness.recorder.records[-1].status in ("unknown", "succeeded")  # it was answered, and charged


async def test_an_answer_of_another_content_type(harness: ContractHarness) -> None:
    good = respond_by_default

    def respond(path: str, body: Any) -> ProviderResponse:
        status, _, content = good(path, body)
        return status, {"content-type": "text/html"}, content

    harness.server.respond = respond
    with pytest.raises(ProviderResponseError, match="content type"):
        await harness.call()


async def test_a_huge_answer(harness: ContractHarness) -> None:
    too_long = {**_good_headers(harness), "content-length": str(10**12)}
    harness.server.respond = lambda *_: (200, too_long, b"x")
    with pytest.raises(ProviderResponseError, match="too large"):
        await harness.call()


async def test_a_private_address_needs_an_entry_of_the_allow_list(harness: ContractHarness) -> None:
    with pytest.raises(ProviderRefusedError, match="egress_allow") as caught:
        await harness.call(policy=EgressPolicy())
    assert "127.0.0.1" not in str(caught.value)
    assert harness.server.requests == []
    assert harness.recorder.records[-1].cost == 0


async def test_a_call_that_cannot_be_recorded_is_not_made(harness: ContractHarness) -> None:
    harness.recorder.error = OSError("the database is away")
    with pytest.raises(OSError, match="away"):
        await harness.call()
    assert harness.server.requests == []


async def test_an_answer_is_used_although_its_usage_cannot_be_recorded(
    harness: ContractHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.systems.providers.metering.RECORD_RETRY_DELAY_S", 0)

    def respond(path: str, body: Any) -> ProviderResponse:
        harness.recorder.error = OSError("the database went away")
        return respond_by_default(path, body)

    harness.server.respond = respond
    await harness.call()
    assert harness.recorder.statuses == ["started"]


async def test_a_cancelled_call_is_recorded(harness: ContractHarness) -> None:
    harness.server.respond = lambda *_: None
    calling = asyncio.create_task(harness.call())
    while not harness.server.requests:
        await asyncio.sleep(0.01)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert harness.recorder.statuses == ["started", "unknown"]


async def test_calls_of_tasks_pause_the_limit_key_or_are_rejected(harness: ContractHarness) -> None:
    harness.server.respond = lambda *_: (429, {"retry-after": "11"}, b"")
    with pytest.raises(RateLimited) as limited, translate_provider_errors("the key"):
        await harness.call()
    assert (limited.value.key, limited.value.retry_after) == ("the key", timedelta(seconds=11))
    harness.server.respond = lambda *_: (400, {}, b"")
    with pytest.raises(Reject), translate_provider_errors("the key"):
        await harness.call()
    harness.server.respond = lambda *_: (500, {}, b"")
    with pytest.raises(ProviderUnavailableError), translate_provider_errors("the key"):
        await harness.call()
