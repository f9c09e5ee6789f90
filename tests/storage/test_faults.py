"""A store that fails or dawdles at each step: every call ends, well or with an error of ours."""

from __future__ import annotations

import os
import secrets
from datetime import timedelta
from pathlib import Path

import pytest
from faulty import FAULTS, Front, front
from stores import s3_url, settings_for, stream

from holdfast import errors
from holdfast.storage import PART_BYTES, Store, objects, open_store

SMALL, LARGE = os.urandom(1000), os.urandom(2 * PART_BYTES)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(objects.CLIENT, "timeout", timedelta(seconds=1))
    monkeypatch.setitem(objects.RETRY, "max_retries", 2)
    backoff = {
        "init_backoff": timedelta(milliseconds=5),
        "max_backoff": timedelta(milliseconds=10),
        "base": 2,
    }
    monkeypatch.setitem(objects.RETRY, "backoff", backoff)


async def put_and_read(store: Store, key: str, content: bytes) -> str:
    """How far it came; what was read is always what was put."""
    try:
        await store.put(key, stream(content))
    except errors.StorageError:
        return "not put"
    found = bytearray()
    try:
        async with store.open(key) as pieces:
            async for piece in pieces:
                found += piece
    except errors.StorageError:
        assert content.startswith(bytes(found))
        return "not read"
    if bytes(found) != content:
        assert content.startswith(bytes(found))
        return "cut short"
    return "read"


async def test_one_fault_at_each_request(moto_port: int, tmp_path: Path, quick: None) -> None:
    """One failed request is asked again; the caller does not notice, or is told that it failed."""
    with front(moto_port) as server:
        store = open_store(settings_for(tmp_path, s3_url(server.port, prefix=secrets.token_hex(4))))
        for content, faults in ((SMALL, FAULTS), (LARGE, FAULTS[:3])):
            server.tell()
            assert await put_and_read(store, "first", content) == "read"
            requests = server.count
            ends = [
                await end(server, store, content, at, fault) for at in range(requests) for fault in faults
            ]
            assert set(ends) <= {"read", "not put", "not read"}
            assert ends.count("read") >= len(ends) // 2


async def end(server: Front, store: Store, content: bytes, at: int, fault: str) -> str:
    server.tell({at: fault})
    return await put_and_read(store, f"{at} {fault}", content)


async def test_a_store_that_goes_away_for_good_at_each_request(
    moto_port: int, tmp_path: Path, quick: None
) -> None:
    with front(moto_port) as server:
        store = open_store(settings_for(tmp_path, s3_url(server.port, prefix=secrets.token_hex(4))))
        server.tell()
        assert await put_and_read(store, "first", LARGE) == "read"
        for at in range(server.count):
            server.tell(dict.fromkeys(range(at, at + 1000), "error"))
            assert await put_and_read(store, f"{at}", LARGE) in {"not put", "not read"}
