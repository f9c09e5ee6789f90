"""Starts object-store servers for tests, and builds the storage URLs and settings that use them."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Generator
from datetime import timedelta
from pathlib import Path

from holdfast.settings import Secret, Settings

SERVER_START_TIMEOUT = timedelta(seconds=90)  # long enough for a machine that is busy with other tests
GCS_TOKEN = "gcs-test-token"
ACCESS_KEY, SECRET_KEY, BUCKET = "holdfast-key", "holdfast-secret-of-some-length", "files"


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def accepts_connections(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def format_s3_url(port: int, *, secret: str = SECRET_KEY, bucket: str = BUCKET, prefix: str = "") -> str:
    return f"s3://{ACCESS_KEY}:{secret}@{bucket}/{prefix}?endpoint=http://127.0.0.1:{port}&region=us-east-1"


def format_gcs_url(port: int, *, token: str = GCS_TOKEN, prefix: str = "") -> str:
    return f"gs://{BUCKET}/{prefix}?endpoint=http://127.0.0.1:{port}&bearer_token={token}"


def run_server(command: list[str], port: int) -> Generator[int]:
    """Start a server, yield its port when it accepts connections, and kill it afterwards."""
    environment = {**os.environ, "AWS_EC2_METADATA_DISABLED": "true"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        # No asyncio.run: the browser of another test may have left an event loop in this thread.
        deadline = time.monotonic() + SERVER_START_TIMEOUT.total_seconds()
        while not accepts_connections(port):
            assert time.monotonic() < deadline, f"no server on port {port}"
            time.sleep(0.02)
        yield port
    finally:
        process.kill()
        process.wait()


def make_storage_settings(folder: Path, url: str | None = None) -> Settings:
    return Settings(home=folder, storage_url=Secret(url) if url else None)


async def stream_chunks(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
