"""Failures that Sentry receives: both steps and the ids, and nothing of the page."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from bookmarks_harness import BookmarksHarness, temporary_error
from web_servers import WebServer, respond, run_web_server

from holdfast import Client
from holdfast.settings import Secret
from holdfast.systems.bookmarks.processing import MessageProcessor
from holdfast.testing import wait_until

sentry_sdk = pytest.importorskip("sentry_sdk")
brotli = pytest.importorskip("brotli")
# Sentry's client uses Brotli if it is installed.
DECOMPRESS_BY_ENCODING: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.decompress,
    "br": brotli.decompress,
    "identity": bytes,
}
QUEUE = "add-bookmark-url-queue"


@pytest.fixture
async def sentry() -> AsyncGenerator[WebServer]:
    """A server that receives envelopes, as Sentry does."""
    async with run_web_server(respond(b"{}", Content_Type="application/json")) as server:
        yield server
        await asyncio.to_thread(sentry_sdk.get_client().close, timeout=2)
        sentry_sdk.get_global_scope().set_client(None)


def read_events(server: WebServer) -> list[dict[str, Any]]:
    """Return the events of the envelopes: lines of JSON, a header before each item."""
    events: list[dict[str, Any]] = []
    for request in server.requests:
        decompress = DECOMPRESS_BY_ENCODING[request.headers.get("content-encoding", "identity")]
        body = decompress(request.body)
        lines = [json.loads(line) for line in body.splitlines() if line.startswith(b"{")]
        events += [line for line in lines if line.get("message") or line.get("logentry")]
    return events


async def test_a_failed_message_is_sent_with_its_ids_and_both_results(
    system: BookmarksHarness, sentry: WebServer
) -> None:
    row = await system.add(system.create_user(), "https://example.com/secret-page")
    system.capture.errors["capture_page"] = temporary_error("Network timeout")
    settings = replace(system.db.settings, sentry_dsn=Secret(f"http://key@{sentry.authority}/1"))
    async with Client(system.db.url.reveal(), settings=settings) as client:
        [message] = await client.queues.read(QUEUE, qty=1, vt=timedelta(minutes=1))
        processed = await MessageProcessor(client, system.capture).process_message(message)
    assert not processed.result.success
    await asyncio.to_thread(sentry_sdk.flush, 20)
    [event] = await wait_until(lambda: read_events(sentry), within=timedelta(seconds=60))
    assert "Failed to process queue message" in json.dumps(event.get("message") or event["logentry"])
    extra = {name: value for name, value in event["extra"].items() if name != "sys.argv"}
    assert extra == {
        "messageId": 1,
        "bookmarkId": row["id"],
        "screenshotSuccess": False,
        "remainingDataSuccess": True,
        "error": "Screenshot: Network timeout",
    }
    assert "secret-page" not in json.dumps(event)
