"""The command `holdfast` of an environment that was made from the wheel."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx

from holdfast.testing import wait_until

WAIT_TIMEOUT = timedelta(minutes=4)


class InstalledHoldfast:
    """The command `holdfast` of the environment, in an empty folder."""

    def __init__(self, environment: Path, folder: Path, variables: dict[str, str]) -> None:
        self.program = environment / "bin" / "holdfast"
        self.folder = folder
        self.variables = {"PATH": os.defpath, "HOME": str(folder), **variables}

    async def run(self, *arguments: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            self.program,
            *arguments,
            cwd=self.folder,
            env=self.variables,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        return process.returncode or 0, output.decode()

    @asynccontextmanager
    async def start(self, *arguments: str) -> AsyncGenerator[Callable[[], str]]:
        """Run a command until the end of the block, and yield a function that reads its output."""
        path = self.folder / f"{arguments[0]}.log"
        with path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                self.program, *arguments, cwd=self.folder, env=self.variables, stdout=log, stderr=log
            )
        try:
            yield path.read_text
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def wait_for(what: Callable[[], Awaitable[Any]], read_log: Callable[[], str]) -> Any:
    async def check() -> Any:
        try:
            return await what()
        except httpx.TransportError:
            return None

    try:
        return await wait_until(check, within=WAIT_TIMEOUT)
    except AssertionError as error:
        raise AssertionError(read_log()[-3000:]) from error
