"""The processes of `holdfast dev`: API and workers, started, watched, mended and stopped together."""

from __future__ import annotations

import ast
import asyncio
import http.client
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.cli.output import CliOutput
from holdfast.client import Client
from holdfast.devtools.child_processes import Child
from holdfast.errors import HoldfastError
from holdfast.formatting import sanitize_text

START_SECONDS = 30.0
_STARTED = re.compile(r"worker\.started .*?tasks=(?:\[([^\]]*)\])?")


@dataclass
class Stage:
    out: CliOutput
    url: str
    api: Child
    workers: list[Child]
    serves_app: bool = False  # the API has the application's job types, and must be started anew with them
    following: bool = False
    _read: dict[Path, int] = field(default_factory=dict[Path, int])
    _mourned: set[str] = field(default_factory=set[str])
    _awaited: dict[str, int] = field(default_factory=dict[str, int])  # where in its log a start begins

    @property
    def children(self) -> list[Child]:
        return [self.api, *self.workers]

    async def start(self) -> None:
        for child in self.children:
            child.log.write_bytes(b"")
            self._awaited[child.name] = 0
            await child.start()

    async def stop(self) -> None:
        await asyncio.gather(*(child.stop() for child in self.children))

    async def restart(self, children: Sequence[Child]) -> None:
        for child in children:
            await child.stop()
            self._awaited[child.name] = child.log.stat().st_size
            await child.start()
            self._mourned.discard(child.name)

    async def answers(self) -> bool:
        """Whether the API is up; waits for it, and no longer once it has ended."""
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while self.api.alive and asyncio.get_running_loop().time() < deadline:
            if await asyncio.to_thread(_status, self.url, "/healthz") == 200:
                return True
            await asyncio.sleep(0.1)
        return False

    async def has_dashboard(self) -> bool:
        return await asyncio.to_thread(_status, self.url, "/dashboard/login") == 200

    async def mend(self, changed: set[str]) -> None:
        """Start what runs the application's code anew when it changed. What died waits for that."""
        if changed:
            mine = [child for child in self.workers if child.name == "worker"]
            if self.serves_app:
                mine.append(self.api)
            if mine:
                names = " and the ".join(child.name for child in mine)
                self.out.print_line(f"{Path(min(changed)).name} changed: restarting the {names}")
                await self.restart(mine)
        for child in self.children:
            if not child.alive and child.name not in self._mourned:
                self._mourned.add(child.name)
                again = "r starts it again" if child.name == "samples" else "save a file, or press r"
                self.out.print_line(f"the {child.name} ended: {sanitize_text(child.last_words(), 300)}  ({again})")

    def greet(self) -> None:
        """Say of each worker that has just started what it runs."""
        for child in self.workers:
            begins = self._awaited.get(child.name)
            if begins is None or not child.log.exists():
                continue
            found = _STARTED.search(child.log.read_bytes()[begins:].decode(errors="replace"))
            if found:
                del self._awaited[child.name]
                mine = [name for name in re.findall(r"'([^']*)'", found[1] or "") if "holdfast." not in name]
                names = ", ".join(mine) or "consumers only"
                self.out.print_line(f" {child.name} is up: {sanitize_text(names, 200)}")

    def follow(self, on: bool) -> None:
        self.following = on
        self._read = {child.log: child.log.stat().st_size for child in self.workers if child.log.exists()}

    def show_log(self) -> None:
        """What the workers have written since the last time, if somebody wants to see it."""
        for child in self.workers if self.following else ():
            with child.log.open("rb") as file:
                file.seek(self._read.get(child.log, 0))
                text = file.read(64_000)
                self._read[child.log] = file.tell()
            for line in text.decode(errors="replace").splitlines():
                self.out.print_line(f"  {child.name}: {sanitize_text(line, 500)}")


def _status(url: str, path: str) -> int:
    """What the API answers with; 0 when it does not."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def has_job_types(app: str) -> bool:
    """Whether an application's file has functions under `@job(...)`; its code is read, not run."""
    place = app.partition(":")[0]
    path = Path(place) if place.endswith(".py") else Path(place.replace(".", "/") + ".py")
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    calls = [each.func for f in functions for each in f.decorator_list if isinstance(each, ast.Call)]
    return any("job" in {getattr(call, "id", None), getattr(call, "attr", None)} for call in calls)


async def login_link(client: Client, url: str) -> str | None:
    """An address that lets whoever opens it first into the dashboard; None where it is not installed."""
    try:
        from holdfast.server.dashboard import login_link as made  # noqa: PLC0415
    except ImportError:
        return None
    try:
        async with (await client.open()).connection() as connection:
            return await made(connection, f"{url}/dashboard")
    except HoldfastError:
        return None
