"""What every store does alike."""

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
from azure_server import azure_url
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from stores import free_port, gcs_url, s3_url, settings_for, stream

from holdfast import errors
from holdfast.storage import PART_BYTES, Store, objects, open_store, place_of
from holdfast.storage.names import disposition


async def read(store: Store, key: str, **part: int) -> bytes:
    async with store.open(key, **part) as pieces:
        return b"".join([piece async for piece in pieces])


async def keys(store: Store, prefix: str = "") -> list[str]:
    return sorted([stored.key async for page in store.list(prefix) for stored in page])


async def test_put_find_read_list_delete(store: Store) -> None:
    assert (
        await store.put("ann/1/file/a-1-x/a.txt", stream(b"hello ", b"world"), content_type="text/plain")
        == 11
    )
    found = await store.find("ann/1/file/a-1-x/a.txt")
    assert found is not None
    assert (found.key, found.size) == ("ann/1/file/a-1-x/a.txt", 11)
    assert await read(store, "ann/1/file/a-1-x/a.txt") == b"hello world"
    await store.put("bob/2/file/b-1-y/empty", stream())
    assert await read(store, "bob/2/file/b-1-y/empty") == b""
    assert await keys(store) == ["ann/1/file/a-1-x/a.txt", "bob/2/file/b-1-y/empty"]
    assert await keys(store, "bob") == ["bob/2/file/b-1-y/empty"]
    await store.delete(["ann/1/file/a-1-x/a.txt", "never/was/here", "bob/2/file/b-1-y/empty"])
    assert await keys(store) == []
    await store.delete(["ann/1/file/a-1-x/a.txt"])
    assert await store.find("ann/1/file/a-1-x/a.txt") is None
    with pytest.raises(errors.NotFoundError):
        await read(store, "ann/1/file/a-1-x/a.txt")


async def test_many_parts(store: Store) -> None:
    """More than one part, with pieces that fit neither parts nor each other."""
    content = os.urandom(2 * PART_BYTES + 12_345)
    pieces = [content[i : i + 999_999] for i in range(0, len(content), 999_999)]
    assert await store.put("big", stream(*pieces)) == len(content)
    assert await read(store, "big") == content
    assert await keys(store) == ["big"]
    await store.delete(["big"])


async def test_ranges(store: Store, ranges: bool) -> None:
    content = os.urandom(100_000)
    await store.put("k", stream(content))
    assert await read(store, "k", start=5, end=5) == b""
    if not ranges:
        with pytest.raises(errors.StorageError):
            await read(store, "k", start=10, end=20)
        return
    for start, end in ((0, 1), (10, 20), (99_990, 100_000), (0, 100_000)):
        assert await read(store, "k", start=start, end=end) == content[start:end]
    assert await read(store, "k", start=99_000) == content[99_000:]


async def test_a_source_that_fails_leaves_nothing_and_its_error(store: Store) -> None:
    async def broken(after: int) -> AsyncIterator[bytes]:
        for _ in range(after):
            yield bytes(1024 * 1024)
        raise ValueError("the source broke")

    for after in (0, 2, 20):  # before the first byte, in the first part, and in the third
        with pytest.raises(ValueError, match="the source broke"):
            await store.put("x/y", broken(after))
    assert await keys(store) == []


async def test_an_upload_that_is_cancelled_writes_nothing_afterwards(store: Store, tmp_path: Path) -> None:
    begun, given = asyncio.Event(), 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal given
        while True:
            given += 1
            if given > 20:
                begun.set()
            await asyncio.sleep(0)
            yield bytes(1024 * 1024)

    upload = asyncio.create_task(store.put("x/y", endless()))
    await asyncio.wait_for(begun.wait(), 60)
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    after = given
    assert await keys(store) == []
    assert given == after
    await store.delete(["x/y"])
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("kind", ["moto", "rclone"])
async def test_links_of_the_store(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    store = open_store(
        settings_for(tmp_path, s3_url(request.getfixturevalue(f"{kind}_port"), prefix="links"))
    )
    name = "Übersicht „2026“ 📊.pdf"
    await store.put("k", stream(b"content"), content_type="application/pdf", disposition=disposition(name))
    link = await store.sign("k", timedelta(minutes=5))

    def fetch_all(url: str) -> tuple[bytes, Message]:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.read(), answer.headers

    body, headers = await asyncio.to_thread(fetch_all, link)
    assert body == b"content"
    if kind == "moto":
        assert headers["Content-Type"] == "application/pdf"
        assert "filename*=UTF-8''%C3%9Cbersicht" in headers["Content-Disposition"]
        return
    for changed in (link[:-4] + "0000", link.replace("links/k", "links/other"), link.split("?")[0]):
        with pytest.raises(urllib.error.HTTPError) as caught:
            await asyncio.to_thread(fetch, changed)
        assert caught.value.code in {400, 401, 403}
        caught.value.close()


@pytest.fixture
def google(gcs_port: int, tmp_path: Path) -> Store:
    """With the key of a service account, which signs links without asking anybody."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    account = {"client_email": "holdfast@test", "private_key": pem, "private_key_id": "1"}
    (tmp_path / "account.json").write_bytes(msgspec.json.encode(account))
    return open_store(settings_for(tmp_path, f"{gcs_url(gcs_port)}&service_account={tmp_path}/account.json"))


async def test_links_of_google(google: Store) -> None:
    await google.put("k", stream(b"content"), content_type="application/pdf")
    link = await google.sign("k", timedelta(minutes=5))
    assert "X-Goog-Expires=300" in link
    assert await asyncio.to_thread(fetch, link) == b"content"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        await asyncio.to_thread(fetch, link.partition("?")[0])


@pytest.mark.long
async def test_links_of_azure(azurite_port: int, tmp_path: Path) -> None:
    store = open_store(settings_for(tmp_path, azure_url(azurite_port)))
    await store.put("k", stream(b"content"), content_type="application/pdf", disposition=disposition("ü.pdf"))
    link = await store.sign("k", timedelta(minutes=5))
    assert await asyncio.to_thread(fetch, link) == b"content"
    for changed in (link.replace("/k?", "/other?"), link.partition("?")[0], link + "0"):
        with pytest.raises(urllib.error.HTTPError, match=r"40[0-9]"):
            await asyncio.to_thread(fetch, changed)


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=20) as answer:
        content: bytes = answer.read()
    return content


async def test_a_wrong_token_of_google_is_refused(gcs_port: int, tmp_path: Path) -> None:
    wrong = open_store(settings_for(tmp_path, gcs_url(gcs_port, token="not-the-token")))
    for call in (wrong.put("k", stream(b"x")), read(wrong, "k"), wrong.delete(["k"]), keys(wrong)):
        with pytest.raises(errors.StorageRightsError, match="refused") as caught:
            await call
        assert "not-the-token" not in str(caught.value)


@pytest.mark.long
async def test_a_wrong_key_of_azure_is_refused(azurite_port: int, tmp_path: Path) -> None:
    wrong = open_store(settings_for(tmp_path, azure_url(azurite_port, key="bm90IHRoZSBrZXk=")))
    for call in (wrong.put("k", stream(b"x")), read(wrong, "k"), keys(wrong)):
        with pytest.raises(errors.StorageRightsError, match="refused"):
            await call


async def test_a_wrong_secret_and_a_wrong_bucket_are_refused(
    rclone_port: int, moto_port: int, tmp_path: Path
) -> None:
    wrong = open_store(settings_for(tmp_path, s3_url(rclone_port, secret="not-the-secret")))
    with pytest.raises(errors.StorageRightsError, match="refused"):
        await wrong.put("k", stream(b"x"))
    with pytest.raises(errors.StorageRightsError):
        await read(wrong, "k")
    elsewhere = open_store(settings_for(tmp_path, s3_url(moto_port, bucket="no-such-bucket")))
    with pytest.raises((errors.StorageError, errors.NotFoundError)) as caught:
        await elsewhere.put("k", stream(b"x"))
    assert "not-the-secret" not in str(caught.value)


async def test_a_store_that_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(objects.RETRY, "max_retries", 1)
    store = open_store(settings_for(tmp_path, s3_url(free_port())))
    for call in (
        store.put("k", stream(b"x")),
        store.find("k"),
        store.delete(["k"]),
        read(store, "k"),
        keys(store),
    ):
        with pytest.raises(errors.StorageAwayError):
            await call


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """A file system that takes no more bytes, by a limit of the process on what it may write."""
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
    except errors.StorageFullError as problem:
        print(problem, await store.find("a/b"), [p async for p in store.list()])
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=100, check=False
    )
    # The library's threads can abort an interpreter that ends at the same moment; all is done by then.
    assert done.returncode in {0, -signal.SIGABRT}, done.stderr
    assert "no space left" in done.stdout, done.stderr
    assert "None []" in done.stdout
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


async def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("in the way")
    with pytest.raises(errors.StorageError):
        await open_store(settings_for(tmp_path)).put("k", stream(b"x"))


@pytest.mark.parametrize("url", ["ftp://host/x", "s3://", "://", "s3://key:secret@/x"])
def test_an_address_that_cannot_be_read(url: str, tmp_path: Path) -> None:
    with pytest.raises(errors.SettingsError, match="storage_url"):
        place_of(settings_for(tmp_path, url))


def test_an_option_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(errors.SettingsError, match="option"):
        open_store(settings_for(tmp_path, "s3://bucket/x?colour=blue"))


async def test_folders_go_when_they_are_empty(tmp_path: Path) -> None:
    store = open_store(settings_for(tmp_path))
    await store.put("a/1/x", stream(b"1"))
    await store.put("a/2/x", stream(b"2"))
    await store.delete(["a/1/x"])
    assert sorted(path.name for path in (tmp_path / "files").rglob("*")) == ["2", "a", "x"]
    await store.delete(["a/2/x"])
    assert list((tmp_path / "files").iterdir()) == []
