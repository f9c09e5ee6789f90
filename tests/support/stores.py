"""Stores for tests, and the servers that they need."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Generator
from datetime import timedelta
from pathlib import Path

from holdfast.settings import Secret, Settings
from holdfast.testing import eventually

PATIENCE = timedelta(seconds=90)  # for a server to start, on a machine that is busy with others
TOKEN = "a-token-of-google-s"
KEY, SECRET, BUCKET = "holdfast-key", "holdfast-secret-of-some-length", "files"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def s3_url(port: int, *, secret: str = SECRET, bucket: str = BUCKET, prefix: str = "") -> str:
    return f"s3://{KEY}:{secret}@{bucket}/{prefix}?endpoint=http://127.0.0.1:{port}&region=us-east-1"


def gcs_url(port: int, *, token: str = TOKEN, prefix: str = "") -> str:
    return f"gs://{BUCKET}/{prefix}?endpoint=http://127.0.0.1:{port}&bearer_token={token}"


def served(command: list[str], port: int) -> Generator[int]:
    environment = {**os.environ, "AWS_EC2_METADATA_DISABLED": "true"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        asyncio.run(eventually(lambda: answers(port), within=PATIENCE, what=f"port {port}"))
        yield port
    finally:
        process.kill()
        process.wait()


def settings_for(folder: Path, url: str | None = None) -> Settings:
    return Settings(home=folder, storage_url=Secret(url) if url else None)


async def stream(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
