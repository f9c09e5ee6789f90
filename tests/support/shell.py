"""The command line inside the test's process, on the test's database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from holdfast import settings as settings_module
from holdfast.cli.root import run
from holdfast.engine.connection import Connection, connected
from holdfast.settings import Secret

Captured = pytest.CaptureFixture[str]
T = TypeVar("T")


class Shell:
    """Runs commands on the test's database, outside any event loop, as a shell does."""

    def __init__(self, url: Secret, captured: Captured) -> None:
        self._url = url
        self._captured = captured

    def __call__(self, *words: str, code: int = 0) -> str:
        """Standard output, or standard error when the command is expected to fail."""
        out, err = self.both(*words, code=code)
        return out if code == 0 else err

    def both(self, *words: str, code: int = 0) -> tuple[str, str]:
        given = run(["--database-url", self._url.reveal(), *words])
        out, err = self._captured.readouterr()
        assert given == code, out + err
        assert "Traceback" not in err
        return out, err

    def json(self, *words: str, code: int = 0) -> list[Any]:
        return [json.loads(line) for line in self.both(*words, "--json", code=code)[0].splitlines()]

    def ask(self, question: Callable[[Connection], Awaitable[T]]) -> T:
        """What the database answers, behind the back of the command line."""

        async def work() -> T:
            async with connected(self._url, settings_module.load()) as connection:
                return await question(connection)

        return asyncio.run(work())
