"""Commands that run inside the test's process must not leave their logging behind."""

from __future__ import annotations

import logging
from collections.abc import Generator

import pytest

from holdfast import telemetry


@pytest.fixture(autouse=True)
def restore_logging(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    log = logging.getLogger("holdfast")
    before = (log.handlers, log.level, log.propagate)
    monkeypatch.setattr(telemetry, "_subscribers", ())
    yield
    log.handlers, log.level, log.propagate = before
