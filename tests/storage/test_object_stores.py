"""Behaviour that every object store has, and the errors of unavailable, full and misconfigured stores."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from datetime import timedelta
from email.message import Message
from pathlib import Path

import msgspec
import pytest
from azure_server import format_azure_url
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from object_store_servers import (
    find_free_port,
    format_gcs_url,
    format_s3_url,
    make_storage_settings,
    stream_chunks,
)

from holdfast import errors
from holdfast.storage import (
    UPLOAD_PART_BYTES,
    ObjectStore,
    obstore_backend,
    open_store,
    parse_storage_location,
)
from holdfast.storage.file_names import format_content_disposition


async def read_object(store: ObjectStore, key: str, **byte_range: int) -> bytes:
    async with store.open(key, **byte_range) as chunks:
        return b"".join([chunk async for chunk in chunks])


async def list_keys(store: ObjectStore, prefix: str = "") -> list[str]:
    return sorted([stored.key async for page in store.list(prefix) for stored in page])


async def test_put_find_read_list_delete(store: ObjectStore) -> None:
    assert (
        await store.put(
            "ann/1/file/a-1-x/a.txt", stream_chunks(b"hello ", b"world"), content_type="text/plain"
        )
        == 11
    )
    stored = await store.find("ann/1/file/a-1-x/a.txt")
    assert stored is not None
    assert (stored.key, stored.size) == ("ann/1/file/a-1-x/a.txt", 11)
    assert await read_object(store, "ann/1/file/a-1-x/a.txt") == b"hello world"
    await store.put("bob/2/file/b-1-y/empty", stream_chunks())
    assert await read_object(store, "bob/2/file/b-1-y/empty") == b""
    assert await list_keys(store) == ["ann/1/file/a-1-x/a.txt", "bob/2/file/b-1-y/empty"]
    assert await list_keys(store, "bob") == ["bob/2/file/b-1-y/empty"]
    await store.delete(["ann/1/file/a-1-x/a.txt", "never/was/here", "bob/2/file/b-1-y/empty"])
    assert await list_keys(store) == []
    await store.delete(["ann/1/file/a-1-x/a.txt"])
    assert await store.find("ann/1/file/a-1-x/a.txt") is None
    with pytest.raises(errors.NotFoundError):
        await read_object(store, "ann/1/file/a-1-x/a.txt")


async def test_put_in_many_parts(store: ObjectStore) -> None:
    """Chunk sizes are not multiples of the part size."""
    content = os.urandom(2 * UPLOAD_PART_BYTES + 12_345)
    chunks = [content[i : i + 999_999] for i in range(0, len(content), 999_999)]
    assert await store.put("big", stream_chunks(*chunks)) == len(content)
    assert await read_object(store, "big") == content
    assert await list_keys(store) == ["big"]
    await store.delete(["big"])


async def test_read_byte_ranges(store: ObjectStore, supports_ranges: bool) -> None:
    content = os.urandom(100_000)
    await store.put("k", stream_chunks(content))
    assert await read_object(store, "k", start=5, end=5) == b""
    if not supports_ranges:
        with pytest.raises(errors.StorageError):
            await read_object(store, "k", start=10, end=20)
        return
    for start, end in ((0, 1), (10, 20), (99_990, 100_000), (0, 100_000)):
        assert await read_object(store, "k", start=start, end=end) == content[start:end]
    assert await read_object(store, "k", start=99_000) == content[99_000:]


async def test_a_failing_source_raises_its_error_and_stores_nothing(store: ObjectStore) -> None:
    async def fail_after(chunk_count: int) -> AsyncIterator[bytes]:
        for _ in range(chunk_count):
            yield bytes(1024 * 1024)
        raise ValueError("the source broke")

    for chunk_count in (0, 2, 20):  # before the first byte, in the first part, and in the third
        with pytest.raises(ValueError, match="the source broke"):
            await store.put("x/y", fail_after(chunk_count))
    assert await list_keys(store) == []


async def test_a_cancelled_upload_writes_nothing_afterwards(store: ObjectStore, tmp_path: Path) -> None:
    third_part_started, chunk_count = asyncio.Event(), 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal chunk_count
        while True:
            chunk_count += 1
            if chunk_count > 20:
                third_part_started.set()
            await asyncio.sleep(0)
            yield bytes(1024 * 1024)

    upload = asyncio.create_task(store.put("x/y", endless()))
    await asyncio.wait_for(third_part_started.wait(), 60)
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    chunks_at_cancel = chunk_count
    assert await list_keys(store) == []
    assert chunk_count == chunks_at_cancel
    await store.delete(["x/y"])
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("server", ["moto", "rclone"])
async def test_signed_urls_of_s3(server: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    store = open_store(
        make_storage_settings(
            tmp_path, format_s3_url(request.getfixturevalue(f"{server}_port"), prefix="links")
        )
    )
    name = "Übersicht „2026“ 📊.pdf"
    await store.put(
        "k",
        stream_chunks(b"content"),
        content_type="application/pdf",
        disposition=format_content_disposition(name),
    )
    url = await store.sign_url("k", timedelta(minutes=5))

    def download_with_headers(url: str) -> tuple[bytes, Message]:
        with urllib.request.urlopen(url, timeout=20) as response:
            return response.read(), response.headers

    body, headers = await asyncio.to_thread(download_with_headers, url)
    assert body == b"content"
    if server == "moto":
        assert headers["Content-Type"] == "application/pdf"
        assert "filename*=UTF-8''%C3%9Cbersicht" in headers["Content-Disposition"]
        return
    for tampered in (url[:-4] + "0000", url.replace("links/k", "links/other"), url.split("?")[0]):
        with pytest.raises(urllib.error.HTTPError) as caught:
            await asyncio.to_thread(download, tampered)
        assert caught.value.code in {400, 401, 403}
        caught.value.close()


@pytest.fixture
def gcs_store(gcs_port: int, tmp_path: Path) -> ObjectStore:
    """A store with the key of a service account, which signs URLs locally."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    account = {"client_email": "holdfast@test", "private_key": pem, "private_key_id": "1"}
    (tmp_path / "account.json").write_bytes(msgspec.json.encode(account))
    return open_store(
        make_storage_settings(tmp_path, f"{format_gcs_url(gcs_port)}&service_account={tmp_path}/account.json")
    )


async def test_signed_urls_of_gcs(gcs_store: ObjectStore) -> None:
    await gcs_store.put("k", stream_chunks(b"content"), content_type="application/pdf")
    url = await gcs_store.sign_url("k", timedelta(minutes=5))
    assert "X-Goog-Expires=300" in url
    assert await asyncio.to_thread(download, url) == b"content"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        await asyncio.to_thread(download, url.partition("?")[0])


@pytest.mark.long
async def test_signed_urls_of_azure(azurite_port: int, tmp_path: Path) -> None:
    store = open_store(make_storage_settings(tmp_path, format_azure_url(azurite_port)))
    await store.put(
        "k",
        stream_chunks(b"content"),
        content_type="application/pdf",
        disposition=format_content_disposition("ü.pdf"),
    )
    url = await store.sign_url("k", timedelta(minutes=5))
    assert await asyncio.to_thread(download, url) == b"content"
    for tampered in (url.replace("/k?", "/other?"), url.partition("?")[0], url + "0"):
        with pytest.raises(urllib.error.HTTPError, match=r"40[0-9]"):
            await asyncio.to_thread(download, tampered)


def download(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=20) as response:
        content: bytes = response.read()
    return content


async def test_gcs_refuses_a_wrong_token(gcs_port: int, tmp_path: Path) -> None:
    store = open_store(make_storage_settings(tmp_path, format_gcs_url(gcs_port, token="not-the-token")))
    for call in (
        store.put("k", stream_chunks(b"x")),
        read_object(store, "k"),
        store.delete(["k"]),
        list_keys(store),
    ):
        with pytest.raises(errors.StoragePermissionError, match="refused") as caught:
            await call
        assert "not-the-token" not in str(caught.value)


@pytest.mark.long
async def test_azure_refuses_a_wrong_key(azurite_port: int, tmp_path: Path) -> None:
    store = open_store(
        make_storage_settings(tmp_path, format_azure_url(azurite_port, key="bm90IHRoZSBrZXk="))
    )
    for call in (store.put("k", stream_chunks(b"x")), read_object(store, "k"), list_keys(store)):
        with pytest.raises(errors.StoragePermissionError, match="refused"):
            await call


async def test_s3_refuses_a_wrong_secret_and_a_missing_bucket(
    rclone_port: int, moto_port: int, tmp_path: Path
) -> None:
    store = open_store(make_storage_settings(tmp_path, format_s3_url(rclone_port, secret="not-the-secret")))
    with pytest.raises(errors.StoragePermissionError, match="refused"):
        await store.put("k", stream_chunks(b"x"))
    with pytest.raises(errors.StoragePermissionError):
        await read_object(store, "k")
    missing_bucket = open_store(
        make_storage_settings(tmp_path, format_s3_url(moto_port, bucket="no-such-bucket"))
    )
    with pytest.raises((errors.StorageError, errors.NotFoundError)) as caught:
        await missing_bucket.put("k", stream_chunks(b"x"))
    assert "not-the-secret" not in str(caught.value)


async def test_a_store_that_is_down_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(obstore_backend.OBSTORE_RETRY_OPTIONS, "max_retries", 1)
    store = open_store(make_storage_settings(tmp_path, format_s3_url(find_free_port())))
    for call in (
        store.put("k", stream_chunks(b"x")),
        store.find("k"),
        store.delete(["k"]),
        read_object(store, "k"),
        list_keys(store),
    ):
        with pytest.raises(errors.StorageUnavailableError):
            await call


def test_a_full_disk_raises_storage_full_error(tmp_path: Path) -> None:
    """A limit on the size of files that the process may write stands in for a full file system."""
    code = """
import asyncio, resource, signal, sys
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000_000, 20_000_000))
from holdfast import errors
from holdfast.settings import Settings
from holdfast.storage import open_store
async def main():
    store = open_store(Settings(home=Path(sys.argv[1])))
    async def content():
        for _ in range(60):
            yield bytes(1_000_000)
    try:
        await store.put("a/b", content())
    except errors.StorageFullError as error:
        print(error, await store.find("a/b"), [p async for p in store.list()])
asyncio.run(main())
"""
    process = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=100, check=False
    )
    # The library's threads can abort an interpreter that exits at the same time, after the test is finished.
    assert process.returncode in {0, -signal.SIGABRT}, process.stderr
    assert "no space left" in process.stdout, process.stderr
    assert "None []" in process.stdout
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


async def test_a_folder_that_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("in the way")
    with pytest.raises(errors.StorageError):
        await open_store(make_storage_settings(tmp_path)).put("k", stream_chunks(b"x"))


@pytest.mark.parametrize("url", ["ftp://host/x", "s3://", "://", "s3://key:secret@/x"])
def test_an_invalid_storage_url(url: str, tmp_path: Path) -> None:
    with pytest.raises(errors.SettingsError, match="storage_url"):
        parse_storage_location(make_storage_settings(tmp_path, url))


def test_an_unknown_storage_option(tmp_path: Path) -> None:
    with pytest.raises(errors.SettingsError, match="option"):
        open_store(make_storage_settings(tmp_path, "s3://bucket/x?colour=blue"))


async def test_empty_folders_are_deleted(tmp_path: Path) -> None:
    store = open_store(make_storage_settings(tmp_path))
    await store.put("a/1/x", stream_chunks(b"1"))
    await store.put("a/2/x", stream_chunks(b"2"))
    await store.delete(["a/1/x"])
    assert sorted(path.name for path in (tmp_path / "files").rglob("*")) == ["2", "a", "x"]
    await store.delete(["a/2/x"])
    assert list((tmp_path / "files").iterdir()) == []
