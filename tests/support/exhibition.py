"""A served dashboard over a database of its own, for tests that look at it from outside."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import asyncpg
import gallery
import httpx
import uvicorn

from holdfast.engine import scratch
from holdfast.engine.connection import Connection, Database
from holdfast.server.api import create_app
from holdfast.server.dashboard import Visitor, create_dashboard, login_link
from holdfast.server.dashboard.app import Dashboard
from holdfast.settings import Secret, Settings
from holdfast.storage import open_store

T = TypeVar("T")


def apart(work: Coroutine[Any, Any, T]) -> T:
    """Run it in a thread of its own: a browser that is driven synchronously keeps a loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result(120)


class Server(uvicorn.Server):
    def install_signal_handlers(self) -> None:
        """Runs in a thread; the test ends it."""


@dataclass
class Exhibition:
    base: str
    url: Secret
    settings: Settings
    dashboard: Dashboard
    server_url: Secret
    ids: dict[str, Any] = field(default_factory=dict[str, Any])

    def ask(self, question: Callable[[Connection], Awaitable[T]]) -> T:
        """Something from the database, on a connection of its own."""

        async def run() -> T:
            connection = await asyncpg.connect(self.url.reveal())
            try:
                return await question(connection)
            finally:
                await connection.close()

        return apart(run())

    def let_in(self, allowed: bool) -> None:
        """Whether the database takes connections; those that are there end."""
        name = self.url.reveal().rpartition("/")[2].partition("?")[0]

        async def run() -> None:
            connection = await asyncpg.connect(self.server_url.reveal())
            await connection.execute(f"alter database {name} with allow_connections {str(allowed).lower()}")
            if not allowed:
                await connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", name
                )
            await connection.close()

        apart(run())

    def link(self, role: str = "admin", name: str = "ann") -> str:
        return self.ask(lambda conn: login_link(conn, self.base, name=name, role=role))

    def visitor(self, role: str, tenant: str | None = None) -> httpx.Client:
        """A browser without a screen, signed in."""
        cookie = self.dashboard.site.signer.start(Visitor("ann", role, tenant))
        return httpx.Client(base_url=self.base, cookies={"holdfast_session": cookie}, timeout=30)

    def token(self, client: httpx.Client) -> str:
        """The form token of a signed-in visitor."""
        session = self.dashboard.site.signer.session(client.cookies["holdfast_session"])
        assert session is not None
        return session.token

    def post(self, client: httpx.Client, path: str, **form: Any) -> httpx.Response:
        form.setdefault("token", self.token(client))
        return client.post(path, data=form, headers={"sec-fetch-site": "same-origin"})


@contextlib.contextmanager
def exhibited(
    server_url: Secret, template: str, settings: Settings, name: str, *, filled: bool = True, **options: Any
) -> Generator[Exhibition]:
    apart(scratch.create(server_url, name, settings, template=template))
    url = scratch.on_database(server_url, name)
    ids: dict[str, Any] = {}

    async def fill() -> None:
        connection = await asyncpg.connect(url.reveal())
        ids.update(await gallery.fill(connection, open_store(settings)))
        await connection.close()

    if filled:
        apart(fill())
    listener = socket.create_server(("127.0.0.1", 0))
    made: list[Dashboard] = []
    ready = threading.Event()
    holder: list[tuple[Server, asyncio.AbstractEventLoop]] = []

    def maker(services: Any) -> Any:
        made.append(create_dashboard(services, **options))  # type: ignore[arg-type]
        return made[-1]

    async def serve() -> None:
        async with Database(url, settings) as database:
            app = create_app(settings, database=database, dashboard=maker)
            server = Server(
                uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1, lifespan="on")
            )
            holder.append((server, asyncio.get_running_loop()))
            ready.set()
            await server.serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    ready.wait(20)
    try:
        base = f"http://127.0.0.1:{listener.getsockname()[1]}/dashboard"
        yield Exhibition(base, url, settings, made[0], server_url, ids)
    finally:
        holder[0][0].should_exit = True
        thread.join(20)
        apart(scratch.drop(server_url, name, settings))
