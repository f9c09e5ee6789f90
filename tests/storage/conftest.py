"""A store of every type for the same tests. S3, GCS and Azure are real servers on loopback."""

from __future__ import annotations

import secrets
import shutil
import sys
import urllib.request
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from azure_server import create_azure_container, find_azurite_command, format_azure_url
from object_store_servers import (
    ACCESS_KEY,
    BUCKET,
    GCS_TOKEN,
    SECRET_KEY,
    find_free_port,
    format_gcs_url,
    format_s3_url,
    make_storage_settings,
    run_server,
)

from holdfast.storage import ObjectStore, open_store


@pytest.fixture(scope="session")
def moto_port() -> Generator[int]:
    """An S3 server that supports ranges and multipart uploads and does not check signatures."""
    port = find_free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    for ready_port in run_server(command, port):
        request = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request, timeout=20).close()
        yield ready_port


@pytest.fixture(scope="session")
def rclone_port(tmp_path_factory: pytest.TempPathFactory) -> Generator[int]:
    """An S3 server that checks signatures and does not support ranges."""
    port = find_free_port()
    folder = tmp_path_factory.mktemp("rclone")
    (folder / BUCKET).mkdir()
    rclone = shutil.which("rclone", path=str(Path(sys.executable).parent)) or "rclone"
    address, keys = f"127.0.0.1:{port}", f"{ACCESS_KEY},{SECRET_KEY}"
    yield from run_server([rclone, "serve", "s3", str(folder), "--addr", address, "--auth-key", keys], port)


@pytest.fixture(scope="session")
def gcs_port() -> Generator[int]:
    """A server with Google's XML API that checks the token."""
    port = find_free_port()
    server = Path(__file__).parents[1] / "support" / "gcs_server.py"
    for ready_port in run_server([sys.executable, str(server), str(port), GCS_TOKEN], port):
        headers = {"authorization": f"Bearer {GCS_TOKEN}"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT", headers=headers)
        urllib.request.urlopen(request, timeout=20).close()
        yield ready_port


@pytest.fixture(scope="session")
def azurite_port(tmp_path_factory: pytest.TempPathFactory) -> Generator[int]:
    """Microsoft's emulator, which checks signatures. It is downloaded from npm at first use."""
    port, folder = find_free_port(), tmp_path_factory.mktemp("azurite")
    command = [
        *find_azurite_command(),
        *("--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)),
        *("--silent", "--disableTelemetry", "--skipApiVersionCheck"),
    ]
    for ready_port in run_server(command, port):
        create_azure_container(port)
        yield ready_port


URL_FORMATS: dict[str, Callable[..., str]] = {
    "moto": format_s3_url,
    "rclone": format_s3_url,
    "gcs": format_gcs_url,
    "azurite": format_azure_url,
}
STORES = ["folder", "memory", "moto", "rclone", "gcs", pytest.param("azurite", marks=pytest.mark.long)]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "folder":
        return open_store(make_storage_settings(tmp_path))
    if request.param == "memory":
        return open_store(make_storage_settings(tmp_path, "memory://"))
    port = request.getfixturevalue(f"{request.param}_port")
    url = URL_FORMATS[request.param](port, prefix=secrets.token_hex(4))
    return open_store(make_storage_settings(tmp_path, url))


@pytest.fixture
def supports_ranges(request: pytest.FixtureRequest) -> bool:
    """Whether the store of this test can return a part of an object."""
    return "rclone" not in request.node.name
