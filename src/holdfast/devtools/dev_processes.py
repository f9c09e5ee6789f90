"""The processes of `holdfast dev`: start, watch, restart and stop the API and the workers together."""

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
from holdfast.devtools.child_processes import ManagedProcess
from holdfast.errors import HoldfastError
from holdfast.formatting import sanitize_text

API_START_TIMEOUT_S = 30.0
API_POLL_INTERVAL_S = 0.1
STATUS_REQUEST_TIMEOUT_S = 2.0
MAX_LOG_READ_BYTES = 64_000
_WORKER_STARTED_PATTERN = re.compile(r"worker\.started .*?tasks=(?:\[([^\]]*)\])?")


@dataclass
class DevProcesses:
    """The API process and the worker processes of one `holdfast dev`."""

    output: CliOutput
    url: str
    api: ManagedProcess
    workers: list[ManagedProcess]
    serves_app: bool = False  # the API serves the application's job types, and restarts when they change
    shows_log: bool = False
    _log_positions: dict[Path, int] = field(default_factory=dict[Path, int])
    _reported_exits: set[str] = field(default_factory=set[str])
    # Workers whose start was not yet reported, with the position in the log where the start begins.
    _unreported_starts: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def all_processes(self) -> list[ManagedProcess]:
        return [self.api, *self.workers]

    @property
    def runs_samples(self) -> bool:
        """Whether there is a worker for the sample jobs."""
        return any(process.name == "samples" for process in self.workers)

    async def start(self) -> None:
        for process in self.all_processes:
            process.log.write_bytes(b"")
            self._unreported_starts[process.name] = 0
            await process.start()

    async def stop(self) -> None:
        await asyncio.gather(*(process.stop() for process in self.all_processes))

    async def restart(self, processes: Sequence[ManagedProcess]) -> None:
        for process in processes:
            await process.stop()
            self._unreported_starts[process.name] = process.log.stat().st_size
            await process.start()
            self._reported_exits.discard(process.name)

    async def wait_for_api(self) -> bool:
        """Wait until the API process responds. Return False if it exits or does not respond in time."""
        deadline = asyncio.get_running_loop().time() + API_START_TIMEOUT_S
        while self.api.is_running and asyncio.get_running_loop().time() < deadline:
            if await asyncio.to_thread(_fetch_http_status, self.url, "/healthz") == 200:
                return True
            await asyncio.sleep(API_POLL_INTERVAL_S)
        return False

    async def has_dashboard(self) -> bool:
        return await asyncio.to_thread(_fetch_http_status, self.url, "/dashboard/login") == 200

    async def restart_if_code_changed(self, changed_files: set[str]) -> None:
        """Restart the processes that run the application's code if a file changed.

        A process that exited is reported once. It starts again with the next change.
        """
        if changed_files:
            affected = [process for process in self.workers if process.name == "worker"]
            if self.serves_app:
                affected.append(self.api)
            if affected:
                names = " and the ".join(process.name for process in affected)
                self.output.print_line(f"{Path(min(changed_files)).name} changed: restarting the {names}")
                await self.restart(affected)
        for process in self.all_processes:
            if not process.is_running and process.name not in self._reported_exits:
                self._reported_exits.add(process.name)
                hint = "press r to restart it"
                if process.name != "samples":
                    hint = "save a file or press r to restart it"
                error = sanitize_text(process.read_last_error(), 300)
                self.output.print_line(f"the {process.name} exited: {error}  ({hint})")

    def print_started_workers(self) -> None:
        """Print the task names of each worker process that has started since the last call."""
        for process in self.workers:
            position = self._unreported_starts.get(process.name)
            if position is None or not process.log.exists():
                continue
            text = process.log.read_bytes()[position:].decode(errors="replace")
            match = _WORKER_STARTED_PATTERN.search(text)
            if match:
                del self._unreported_starts[process.name]
                tasks = re.findall(r"'([^']*)'", match[1] or "")
                names = ", ".join(name for name in tasks if "holdfast." not in name) or "consumers only"
                self.output.print_line(f" {process.name} started: {sanitize_text(names, 200)}")

    def toggle_log(self) -> None:
        """Turn the printing of new lines in the workers' logs on or off."""
        self.shows_log = not self.shows_log
        self._log_positions = {
            process.log: process.log.stat().st_size for process in self.workers if process.log.exists()
        }

    def print_new_log_lines(self) -> None:
        for process in self.workers if self.shows_log else ():
            with process.log.open("rb") as file:
                file.seek(self._log_positions.get(process.log, 0))
                text = file.read(MAX_LOG_READ_BYTES)
                self._log_positions[process.log] = file.tell()
            for line in text.decode(errors="replace").splitlines():
                self.output.print_line(f"  {process.name}: {sanitize_text(line, 500)}")


def _fetch_http_status(url: str, path: str) -> int:
    """Send a GET request and return the HTTP status code, or 0 if there is no response."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port, timeout=STATUS_REQUEST_TIMEOUT_S
    )
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def has_job_types(app: str) -> bool:
    """Return whether the Python file of an application defines job types with `@job(...)`.

    The code is parsed and not imported, because importing it has side effects.
    """
    location = app.partition(":")[0]
    path = Path(location) if location.endswith(".py") else Path(location.replace(".", "/") + ".py")
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    decorators = [
        decorator.func
        for function in functions
        for decorator in function.decorator_list
        if isinstance(decorator, ast.Call)
    ]
    return any("job" in {getattr(call, "id", None), getattr(call, "attr", None)} for call in decorators)


async def create_login_link(client: Client, url: str) -> str | None:
    """Create a one-time login link for the dashboard, or return None if the database is not available."""
    from holdfast.server.dashboard import create_login_link as create_dashboard_login_link  # noqa: PLC0415

    try:
        async with client.connection() as connection:
            return await create_dashboard_login_link(connection, f"{url}/dashboard")
    except HoldfastError:
        return None
