"""The command line inside the test's process, on the test's database."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.cli.root import run
from holdfast.settings import Secret

Captured = pytest.CaptureFixture[str]


class Shell:
    """Runs commands on the test's database, outside any event loop, as a shell does."""

    def __init__(self, url: Secret, captured: Captured) -> None:
        self._url = url
        self._captured = captured

    def __call__(self, *words: str, code: int = 0) -> str:
        """Standard output, or standard error when the command is expected to fail."""
        given = run(["--database-url", self._url.reveal(), *words])
        out, err = self._captured.readouterr()
        assert given == code, out + err
        assert "Traceback" not in err
        return out if code == 0 else err

    def json(self, *words: str) -> list[Any]:
        return [json.loads(line) for line in self(*words, "--json").splitlines()]
