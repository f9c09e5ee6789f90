"""Run commands of `holdfast` in the process of a test, on the test's database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from holdfast import settings as settings_module
from holdfast.cli.root import run_command_line
from holdfast.engine.connection import Connection, open_connection
from holdfast.settings import Secret

Captured = pytest.CaptureFixture[str]
T = TypeVar("T")


class Shell:
    """Runs commands on the test's database, outside any event loop, as a shell does."""

    def __init__(self, url: Secret, captured: Captured) -> None:
        self._url = url
        self._captured = captured

    def __call__(self, *words: str, code: int = 0) -> str:
        """Run a command and return its standard output, or its standard error if it is expected to fail."""
        stdout, stderr = self.run_for_outputs(*words, code=code)
        return stdout if code == 0 else stderr

    def run_for_outputs(self, *words: str, code: int = 0) -> tuple[str, str]:
        """Run a command, check its exit code, and return standard output and standard error."""
        exit_code = run_command_line(["--database-url", self._url.reveal(), *words])
        stdout, stderr = self._captured.readouterr()
        assert exit_code == code, stdout + stderr
        assert "Traceback" not in stderr
        return stdout, stderr

    def json(self, *words: str, code: int = 0) -> list[Any]:
        """Run a command with `--json` and return the objects that it prints."""
        return [
            json.loads(line) for line in self.run_for_outputs(*words, "--json", code=code)[0].splitlines()
        ]

    def query(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Run `work` with a connection to the test's database, without the command line."""

        async def connect_and_run() -> T:
            async with open_connection(self._url, settings_module.load_settings()) as connection:
                return await work(connection)

        return asyncio.run(connect_and_run())
