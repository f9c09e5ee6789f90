"""Fixtures of the command line's tests: logging as it was before each command, and two shards."""

from __future__ import annotations

import logging
from collections.abc import Generator

import pytest
from shard_databases import create_shard_databases

from holdfast import telemetry
from holdfast.settings import Secret, Settings


@pytest.fixture(autouse=True)
def restore_logging(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    log = logging.getLogger("holdfast")
    before = (log.handlers, log.level, log.propagate)
    monkeypatch.setattr(telemetry, "_subscribers", ())
    yield
    log.handlers, log.level, log.propagate = before


@pytest.fixture
async def urls(server_url: Secret, template: str, settings: Settings) -> dict[int, str]:
    """The addresses of two shards."""
    return await create_shard_databases(server_url, template, settings, [1, 2])
