"""Run the dashboard on a database of its own, for tests that use it through HTTP or a browser."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
import httpx
import uvicorn
from sample_dashboard_data import create_sample_data

from holdfast.engine import scratch, sessions
from holdfast.engine.access import hash_secret
from holdfast.engine.connection import Connection, Database
from holdfast.engine.sessions import NewSession
from holdfast.server import create_app
from holdfast.server.dashboard import create_dashboard, create_login_link
from holdfast.server.dashboard.app import Dashboard
from holdfast.server.dashboard.sessions import derive_form_token
from holdfast.settings import Secret, Settings
from holdfast.storage import open_store

T = TypeVar("T")


def run_in_thread(coroutine: Coroutine[Any, Any, T], timeout_s: float = 120) -> T:
    """Run a coroutine in a thread of its own, because the browser driver has a loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result(timeout_s)


class ThreadedServer(uvicorn.Server):
    """A server that runs in a thread, where signal handlers cannot be installed."""

    def install_signal_handlers(self) -> None:
        """Do nothing: the test stops the server."""


@dataclass
class DashboardServer:
    """A running dashboard. `ids` are the ids of the sample data."""

    base: str
    url: Secret
    settings: Settings
    app: Dashboard
    server_url: Secret
    ids: dict[str, Any] = field(default_factory=dict[str, Any])

    def run_query(self, query: Callable[[Connection], Awaitable[T]], timeout_s: float = 120) -> T:
        """Run a coroutine function with a new connection to the dashboard's database."""

        async def run() -> T:
            connection = await asyncpg.connect(self.url.reveal())
            try:
                return await query(connection)
            finally:
                await connection.close()

        return run_in_thread(run(), timeout_s)

    def allow_connections(self, allowed: bool) -> None:
        """Let the database accept or refuse connections. Refusing also ends the open ones."""
        name = self.url.reveal().rpartition("/")[2].partition("?")[0]

        async def run() -> None:
            connection = await asyncpg.connect(self.server_url.reveal())
            await connection.execute(f"alter database {name} with allow_connections {str(allowed).lower()}")
            if not allowed:
                await connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", name
                )
            await connection.close()

        run_in_thread(run())

    def create_login_link(self, role: str = "admin", name: str = "ann") -> str:
        """Return a URL that signs a browser in."""
        return self.run_query(lambda conn: create_login_link(conn, self.base, name=name, role=role))

    def start_session(self, role: str, tenant: str | None = None, name: str = "ann") -> tuple[UUID, str]:
        """Store a session and return its id and its cookie."""
        cookie = secrets.token_urlsafe(32)
        session = NewSession(digest=hash_secret(cookie), login="link", name=name, role=role, tenant=tenant)

        async def store(conn: Connection) -> UUID | None:
            return await sessions.start_session(conn, session, timedelta(hours=12))

        session_id = self.run_query(store)
        assert session_id is not None
        return session_id, cookie

    def sign_in(self, role: str, tenant: str | None = None) -> httpx.Client:
        """Return an HTTP client that is signed in as ann."""
        _, cookie = self.start_session(role, tenant)
        return httpx.Client(base_url=self.base, cookies={"holdfast_session": cookie}, timeout=30)

    def get_form_token(self, client: httpx.Client) -> str:
        """Return the form token of a client's session."""
        return derive_form_token(client.cookies["holdfast_session"])

    def post_form(self, client: httpx.Client, path: str, **form: Any) -> httpx.Response:
        """Submit a form with the token of the client's session."""
        form.setdefault("token", self.get_form_token(client))
        return client.post(path, data=form, headers={"sec-fetch-site": "same-origin"})


@contextlib.contextmanager
def run_dashboard_server(
    server_url: Secret, template: str, settings: Settings, name: str, **options: Any
) -> Generator[DashboardServer]:
    """Create a database with sample data, serve the dashboard over it, and drop the database afterwards."""
    run_in_thread(scratch.create_test_database(server_url, name, settings, template=template))
    url = scratch.build_database_url(server_url, name)
    ids: dict[str, Any] = {}

    async def insert_sample_data() -> None:
        connection = await asyncpg.connect(url.reveal())
        ids.update(await create_sample_data(connection, open_store(settings)))
        await connection.execute("select holdfast.evaluate_alerts(0)")
        await connection.close()

    run_in_thread(insert_sample_data())
    listener = socket.create_server(("127.0.0.1", 0))
    dashboards: list[Dashboard] = []
    servers: list[ThreadedServer] = []
    ready = threading.Event()

    def create(services: Any) -> Any:
        dashboards.append(create_dashboard(services, **options))  # type: ignore[arg-type]
        return dashboards[-1]

    async def serve() -> None:
        async with Database(url, settings) as database:
            app = create_app(settings, database=database, dashboard=create)
            config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1, lifespan="on")
            servers.append(ThreadedServer(config))
            ready.set()
            await servers[0].serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    ready.wait(20)
    try:
        base = f"http://127.0.0.1:{listener.getsockname()[1]}/dashboard"
        yield DashboardServer(base, url, settings, dashboards[0], server_url, ids)
    finally:
        servers[0].should_exit = True
        thread.join(20)
        run_in_thread(scratch.drop_test_database(server_url, name, settings))
