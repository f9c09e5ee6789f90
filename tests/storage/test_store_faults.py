"""A store that fails or is slow at each request: every call either succeeds or raises a StorageError."""

from __future__ import annotations

import os
import secrets
from datetime import timedelta
from pathlib import Path

import pytest
from fault_proxy import FAULTS, FaultProxy, run_fault_proxy
from object_store_servers import format_s3_url, make_storage_settings, stream_chunks

from holdfast import errors
from holdfast.storage import UPLOAD_PART_BYTES, ObjectStore, obstore_backend, open_store

SMALL_CONTENT, LARGE_CONTENT = os.urandom(1000), os.urandom(2 * UPLOAD_PART_BYTES)


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(obstore_backend.HTTP_CLIENT_OPTIONS, "timeout", timedelta(seconds=1))
    monkeypatch.setitem(obstore_backend.OBSTORE_RETRY_OPTIONS, "max_retries", 2)
    backoff = {
        "init_backoff": timedelta(milliseconds=5),
        "max_backoff": timedelta(milliseconds=10),
        "base": 2,
    }
    monkeypatch.setitem(obstore_backend.OBSTORE_RETRY_OPTIONS, "backoff", backoff)


async def put_and_read(store: ObjectStore, key: str, content: bytes) -> str:
    """Return which operation failed, if any. Bytes that are read always equal those that were put."""
    try:
        await store.put(key, stream_chunks(content))
    except errors.StorageError:
        return "not put"
    received = bytearray()
    try:
        async with store.open(key) as chunks:
            async for chunk in chunks:
                received += chunk
    except errors.StorageError:
        assert content.startswith(bytes(received))
        return "not read"
    if bytes(received) != content:
        assert content.startswith(bytes(received))
        return "truncated"
    return "read"


async def test_one_failed_request_is_retried_or_raises(
    moto_port: int, tmp_path: Path, short_timeouts: None
) -> None:
    with run_fault_proxy(moto_port) as proxy:
        url = format_s3_url(proxy.port, prefix=secrets.token_hex(4))
        store = open_store(make_storage_settings(tmp_path, url))
        for content, faults in ((SMALL_CONTENT, FAULTS), (LARGE_CONTENT, FAULTS[:3])):
            proxy.set_faults()
            assert await put_and_read(store, "first", content) == "read"
            outcomes = [
                await put_and_read_with_fault(proxy, store, content, number, fault)
                for number in range(proxy.request_count)
                for fault in faults
            ]
            assert set(outcomes) <= {"read", "not put", "not read"}
            assert outcomes.count("read") >= len(outcomes) // 2


async def put_and_read_with_fault(
    proxy: FaultProxy, store: ObjectStore, content: bytes, number: int, fault: str
) -> str:
    proxy.set_faults({number: fault})
    return await put_and_read(store, f"{number} {fault}", content)


async def test_a_store_that_fails_permanently_raises(
    moto_port: int, tmp_path: Path, short_timeouts: None
) -> None:
    with run_fault_proxy(moto_port) as proxy:
        url = format_s3_url(proxy.port, prefix=secrets.token_hex(4))
        store = open_store(make_storage_settings(tmp_path, url))
        proxy.set_faults()
        assert await put_and_read(store, "first", LARGE_CONTENT) == "read"
        for first_fault in range(proxy.request_count):
            proxy.set_faults(dict.fromkeys(range(first_fault, first_fault + 1000), "error"))
            outcome = await put_and_read(store, f"{first_fault}", LARGE_CONTENT)
            if proxy.request_count <= first_fault:  # the first run repeated a slow request; no fault was met
                break
            assert outcome in {"not put", "not read"}
        assert first_fault >= 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Generic S3 error: Error performing PUT in 308.923µs - HTTP error", errors.StorageUnavailableError),
        ("Generic S3 error: Error performing PUT in 1.403s - HTTP error", errors.StorageUnavailableError),
        ("Server returned non-2xx status code: 403 Forbidden", errors.StoragePermissionError),
        ("Received redirect without LOCATION, 301: check the region", errors.StoragePermissionError),
    ],
)
def test_a_duration_in_the_text_of_an_error_is_no_status_code(text: str, expected: type[Exception]) -> None:
    with pytest.raises(expected), obstore_backend.translate_store_errors("key"):
        raise OSError(text)
