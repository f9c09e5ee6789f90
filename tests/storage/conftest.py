"""Stores of every kind to run the same tests against, S3 among them as real servers on loopback."""

from __future__ import annotations

import secrets
import shutil
import sys
import urllib.request
from collections.abc import Generator
from pathlib import Path

import pytest
from stores import BUCKET, KEY, SECRET, free_port, s3_url, served, settings_for

from holdfast.storage import Store, open_store


@pytest.fixture(scope="session")
def moto_port() -> Generator[int]:
    """Knows ranges and multipart uploads; checks no signatures."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    for ready in served(command, port):
        bucket = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
        urllib.request.urlopen(bucket, timeout=20).close()
        yield ready


@pytest.fixture(scope="session")
def rclone_port(tmp_path_factory: pytest.TempPathFactory) -> Generator[int]:
    """Checks signatures; answers no ranges."""
    port = free_port()
    folder = tmp_path_factory.mktemp("rclone")
    (folder / BUCKET).mkdir()
    rclone = shutil.which("rclone", path=str(Path(sys.executable).parent)) or "rclone"
    yield from served(
        [rclone, "serve", "s3", str(folder), "--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}"],
        port,
    )


@pytest.fixture(params=["folder", "memory", "moto", "rclone"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return open_store(settings_for(tmp_path))
    if request.param == "memory":
        return open_store(settings_for(tmp_path, "memory://"))
    port = request.getfixturevalue(f"{request.param}_port")
    return open_store(settings_for(tmp_path, s3_url(port, prefix=secrets.token_hex(4))))


@pytest.fixture
def ranges(request: pytest.FixtureRequest) -> bool:
    """Whether the store of this test answers with parts of objects."""
    return "rclone" not in request.node.name
