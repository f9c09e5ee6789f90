"""Stores of every kind to run the same tests against, S3 among them as real servers on loopback."""

from __future__ import annotations

import secrets
import shutil
import sys
import urllib.request
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from azure_server import azure_url, azurite, make_container
from stores import BUCKET, KEY, SECRET, TOKEN, free_port, gcs_url, s3_url, served, settings_for

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


@pytest.fixture(scope="session")
def gcs_port() -> Generator[int]:
    """Google's XML interface; checks the token."""
    port = free_port()
    server = Path(__file__).parents[1] / "support" / "gcs_server.py"
    for ready in served([sys.executable, str(server), str(port), TOKEN], port):
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/{BUCKET}", method="PUT", headers={"authorization": f"Bearer {TOKEN}"}
        )
        urllib.request.urlopen(request, timeout=20).close()
        yield ready


@pytest.fixture(scope="session")
def azurite_port(tmp_path_factory: pytest.TempPathFactory) -> Generator[int]:
    """Microsoft's own emulator; checks signatures. Fetched from npm when it is asked for the first time."""
    port, folder = free_port(), tmp_path_factory.mktemp("azurite")
    command = [*azurite(), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)]
    for ready in served([*command, "--silent", "--disableTelemetry", "--skipApiVersionCheck"], port):
        make_container(port)
        yield ready


ADDRESSES: dict[str, Callable[..., str]] = {"gcs": gcs_url, "azurite": azure_url}
STORES = ["folder", "memory", "moto", "rclone", "gcs", pytest.param("azurite", marks=pytest.mark.long)]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return open_store(settings_for(tmp_path))
    if request.param == "memory":
        return open_store(settings_for(tmp_path, "memory://"))
    if request.param in ADDRESSES:
        port = request.getfixturevalue(f"{request.param}_port")
        return open_store(settings_for(tmp_path, ADDRESSES[request.param](port, prefix=secrets.token_hex(4))))
    port = request.getfixturevalue(f"{request.param}_port")
    return open_store(settings_for(tmp_path, s3_url(port, prefix=secrets.token_hex(4))))


@pytest.fixture
def ranges(request: pytest.FixtureRequest) -> bool:
    """Whether the store of this test answers with parts of objects."""
    return "rclone" not in request.node.name
