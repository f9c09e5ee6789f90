"""The product under attack: PostgreSQL, the API with dashboard and systems, and a worker, in processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import httpx
from api_clients import ISSUER, SECRET, bearer_headers

from attack.app import list_queues_by_worker
from attack.identities import User
from holdfast import settings as settings_module
from holdfast.engine import embedded, install
from holdfast.engine.connection import Connection
from holdfast.settings import Secret, Settings
from holdfast.testing import wait_until

ROOT = Path(__file__).parents[1]
HOLDFAST_COMMAND = (sys.executable, "-m", "holdfast", "--log-level", "warning")
SERVER_OPTIONS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
SERVICE_KEY = "hf_attacked_service_key_of_the_configuration"
# Every request of an attack must be answered, so the limits that would stop an attack early are raised. The
# attacks on the limits themselves lower nothing: they stay below these numbers.
API_ENVIRONMENT = {
    "HOLDFAST_SERVICE_KEY": SERVICE_KEY,
    "HOLDFAST_SIGNING_KEY": "a signing key for the attacks, long enough for every algorithm",
    "HOLDFAST_JWT_SECRET": SECRET,
    "HOLDFAST_JWT_ISSUER": ISSUER,
    "HOLDFAST_API_RATE": "100000",
    "HOLDFAST_API_BURST": "100000",
    "HOLDFAST_CONNECT_TIMEOUT": "60s",
    "HOLDFAST_MEDIA_RETRY_DELAY": "100ms",  # a planted share has failed for good before the attacks begin
}
START_TIMEOUT = timedelta(seconds=600)  # the machine may be busy
PROBE_TIMEOUT = timedelta(seconds=300)


@dataclass
class Product:
    """The running product: its address, its database, its processes and two users with data."""

    folder: Path
    url: Secret
    settings: Settings
    base: str
    http: httpx.AsyncClient
    connection: Connection
    dose: str
    systems: Sequence[str]
    processes: dict[str, asyncio.subprocess.Process] = field(
        default_factory=dict[str, asyncio.subprocess.Process]
    )
    users: dict[str, User] = field(default_factory=dict[str, User])
    probes: int = 0
    systems_without_data: set[str] = field(default_factory=set[str])

    @property
    def is_short(self) -> bool:
        return self.dose == "short"

    @property
    def service(self) -> dict[str, str]:
        """The headers of a service that may do everything."""
        return bearer_headers(SERVICE_KEY)

    async def send(self, method: str, path: str, headers: dict[str, str], **options: Any) -> httpx.Response:
        """Send a request and return its response. Of an event stream, read the first frame only."""
        request = self.http.build_request(method, path, headers=headers, **options)
        response = await self.http.send(request, stream=True)
        try:
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                await _read_first_chunks(response)
            else:
                await response.aread()
        finally:
            await response.aclose()
        return response

    async def list_page_paths(self) -> list[str]:
        """Return the paths of the HTML pages for users, from the OpenAPI document: systems and front door."""
        document = (await self.http.get("/api/openapi.json")).json()
        return [
            path
            for path, operations in document["paths"].items()
            if any(
                media_type.startswith("text/html")
                for response in operations.get("get", {}).get("responses", {}).values()
                for media_type in response.get("content", {})
            )
        ]

    async def connect(self, **options: Any) -> Connection:
        connection: Connection = await asyncpg.connect(self.url.reveal(), **options)
        return connection

    async def run_probe(self) -> None:
        """Submit a job and wait until the worker has finished it. Raise AssertionError if it does not."""
        self.probes += 1
        body = {"type": "probe", "queue": "probe", "args": {"number": self.probes}}
        created = await self.http.post("/api/jobs", json=body, headers=self.service)
        assert created.status_code == 202, f"the probe was not accepted: {created.status_code} {created.text}"
        await self.wait_for_job(created.json()["id"], "succeeded")

    async def wait_for_job(self, job_id: str, *statuses: str) -> dict[str, Any]:
        """Wait until a job has one of the statuses (any final status by default)."""
        wanted = statuses or ("succeeded", "failed", "cancelled", "partial")

        async def has_status() -> dict[str, Any] | None:
            self.check_processes()
            response = await self.http.get(f"/api/jobs/{job_id}", headers=self.service)
            job: dict[str, Any] = response.json()
            return job if job.get("status") in wanted else None

        job: dict[str, Any] = await wait_until(has_status, within=PROBE_TIMEOUT, what=f"job {job_id} ends")
        return job

    def find_dead_processes(self) -> list[str]:
        return [name for name, process in self.processes.items() if process.returncode is not None]

    def check_processes(self) -> None:
        """Raise AssertionError with the end of the log if a process has ended."""
        for name in self.find_dead_processes():
            raise AssertionError(f"the {name} ended: {self.read_log(name)[-2000:]}")

    def read_log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")


async def _read_first_chunks(response: httpx.Response) -> None:
    """Read an event stream until its first event. Let `response.text` work afterwards."""
    content = b""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(20):
            async for chunk in response.aiter_bytes():
                content += chunk
                if b"event:" in content:
                    break
    response._content = content


@asynccontextmanager
async def open_product(dose: str, system_names: Sequence[str]) -> AsyncGenerator[Product]:
    """Start the database, the API with dashboard and systems, and workers. Stop them at the end."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-attack-"))
    folder.chmod(0o755)
    settings = settings_module.load_settings(
        {"home": str(folder / "home"), "connect_timeout": "60s"}, environ={}, folder=folder
    )
    server = await asyncio.to_thread(embedded.start_server, settings, options=SERVER_OPTIONS)
    try:
        await install.migrate_database(server.url, settings)
        connection = await asyncpg.connect(server.url.reveal())
        # Users may submit this type directly, so that attacks on `submit` pass the first check.
        await connection.execute("""insert into holdfast.options values ('public_types', '["probe"]')""")
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(connection.close)
            product = await stack.enter_async_context(
                _start_processes(folder, server.url, settings, connection, dose, system_names)
            )
            yield product
    finally:
        server.release()
        await asyncio.to_thread(embedded.stop_server, settings)
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def _start_processes(
    folder: Path,
    url: Secret,
    settings: Settings,
    connection: Connection,
    dose: str,
    system_names: Sequence[str],
) -> AsyncGenerator[Product]:
    port = _choose_free_port()
    base = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=base, timeout=60, limits=httpx.Limits(max_connections=50)) as http:
        product = Product(folder, url, settings, base, http, connection, dose, system_names)
        systems = [word for name in system_names for word in ("--system", name)]
        try:
            await _start_process(
                product, "api", "api", "attack.app:own_definitions", "--port", str(port), *systems
            )
            await _wait_for_api(product)
            for app, queues in list_queues_by_worker(system_names).items():
                # Only the queues of the tasks: a worker for all queues would deliver webhooks to other hosts.
                options = ("--queues", ",".join(queues), "--grace", "1s")
                await _start_process(product, f"worker {app}", "worker", app, *options)
            await product.run_probe()
            yield product
        finally:
            for process in reversed(product.processes.values()):
                await _stop_process(process)


async def _start_process(product: Product, name: str, *command: str) -> None:
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")},
        **API_ENVIRONMENT,
        "HOLDFAST_DATABASE_URL": product.url.reveal(),
        "HOLDFAST_HOME": str(product.settings.home),
        "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}:{ROOT / 'tests' / 'support'}",
    }
    with (product.folder / f"{name}.log").open("wb") as log:
        product.processes[name] = await asyncio.create_subprocess_exec(
            *HOLDFAST_COMMAND, *command, env=environment, cwd=product.folder, stdout=log, stderr=log
        )


async def _wait_for_api(product: Product) -> None:
    async def is_ready() -> bool:
        product.check_processes()
        try:
            return (await product.http.get("/readyz")).status_code == 200
        except httpx.TransportError:
            return False

    await wait_until(is_ready, within=START_TIMEOUT, what="the API is ready")


async def _stop_process(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(20):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _choose_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
