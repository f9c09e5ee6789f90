"""`holdfast api`: the HTTP API, on loopback unless authentication is configured."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import ipaddress
import os
import secrets
import signal
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from holdfast import telemetry
from holdfast.cli import apps, logs
from holdfast.cli.session import Session, attached_option, pass_session
from holdfast.engine import embedded, install
from holdfast.engine.connection import Database, connected
from holdfast.errors import HoldfastError, NotFoundError, RefusedError
from holdfast.settings import Secret, Settings
from holdfast.systems import mount

SYSTEMS = "holdfast.systems"
STOP_SECONDS = 5  # for open answers; event streams would stay for ever


@click.command()
@click.argument("app", required=False)
@click.option("--host", help="Address to listen on (setting api_host).")
@click.option("--port", type=int, help="Port to listen on, 0 for a free one (setting api_port).")
@click.option("--system", "systems", multiple=True, metavar="NAME",
              help="Serve this system too, such as exports or reports; once for each.")  # fmt: skip
@click.option("--no-dashboard", is_flag=True, help="Leave the dashboard out.")
@attached_option
@pass_session
def api(session: Session, /, app: str | None, systems: tuple[str, ...], **given: Any) -> None:
    """Serve the HTTP API and the dashboard until stopped.

    APP is a file (app.py) or module whose job types can be started through the API, as a worker takes it.
    """
    overrides = {"api_host": given["host"], "api_port": given["port"]}
    session.overrides.update({name: value for name, value in overrides.items() if value is not None})
    settings = session.settings
    logs.configure(settings)
    if not authenticates(settings):
        refuse_beyond_loopback(settings.api_host)
    if settings.service_key is None and is_loopback(settings.api_host):
        settings = replace(settings, service_key=local_service_key(settings.home))
    served = Served(
        apps.load(app) if app else apps.App(),
        tuple(system_module(name) for name in systems),
        dashboard=not given["no_dashboard"],
    )
    listener = listen(settings.api_host, settings.api_port)
    url, _server = embedded.locate(settings)
    session.serve(serve(settings, url, listener, served))


@dataclass(frozen=True)
class Served:
    """What is served besides the routes that are always there."""

    app: apps.App
    systems: tuple[ModuleType, ...] = ()
    dashboard: bool = True

    def parts(self) -> dict[str, Any]:
        """What `create_app` is given of it all."""
        ours = {"types": self.app.types.values(), "tasks": self.app.tasks.values()}
        return mount(ours, *(system.mount() for system in self.systems))


def system_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"{SYSTEMS}.{name}")
    except ImportError as problem:
        if problem.name and problem.name.startswith(SYSTEMS):
            raise NotFoundError(f"There is no system {name}.", field="system") from None
        raise HoldfastError(
            f"The system {name} needs a package that is not installed: {problem.name}."
        ) from None


def authenticates(settings: Settings) -> bool:
    """Whether somebody was told how to prove who they are."""
    return any(each is not None for each in (settings.service_key, settings.jwt_secret, settings.jwt_jwks))


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_beyond_loopback(host: str) -> None:
    if not is_loopback(host):
        raise RefusedError(
            f"The API does not listen on {host} without authentication.",
            fix="Set HOLDFAST_SERVICE_KEY to a long random key or HOLDFAST_JWT_SECRET to the secret of your "
            "tokens, or listen on 127.0.0.1.",
        )


def local_service_key(home: Path) -> Secret:
    """A key for this machine, made once and readable by its owner only."""
    place = home / "service-key"
    try:
        home.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return Secret(place.read_text(encoding="ascii").strip())
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"hf_{secrets.token_urlsafe(32)}\n")
    return Secret(place.read_text(encoding="ascii").strip())


def listen(host: str, port: int) -> socket.socket:
    """Take the port before anything else is started, so that a taken one costs nothing."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as problem:
        raise HoldfastError(
            f"Cannot listen on {host}:{port}: {problem}.",
            fix="Stop what uses that port, or choose another one with --port (0 takes a free one).",
        ) from problem
    return listener


async def serve(
    settings: Settings, url: Secret, listener: socket.socket, served: Served | None = None
) -> None:
    served = served or Served(apps.App())
    try:  # the web framework is an extra
        import uvicorn  # noqa: PLC0415

        from holdfast.server.api import create_app  # noqa: PLC0415
        from holdfast.server.dashboard import create_dashboard, login_link  # noqa: PLC0415
    except ImportError as problem:
        raise HoldfastError(
            f"The API needs a package that is not installed: {problem.name}.",
            fix="pip install 'holdfast[server]'",
        ) from problem
    async with connected(url, settings) as connection:
        await install.verify(connection)
        for system in served.systems:
            await system.ensure(connection, settings.systems_schema)
    host, port = listener.getsockname()[:2]
    dashboard = create_dashboard if served.dashboard else None
    async with Database(url, settings) as database:
        app = create_app(settings, database=database, dashboard=dashboard, **served.parts())
        config = uvicorn.Config(
            app, log_config=None, lifespan="on", server_header=False, timeout_graceful_shutdown=STOP_SECONDS
        )
        server = uvicorn.Server(config)
        _stop_on_signals(server)
        telemetry.emit("api.started", url=f"http://{host}:{port}")
        if served.dashboard and is_loopback(host):
            async with database.connection() as connection:
                link = await login_link(connection, f"http://{host}:{port}/dashboard")
            click.echo(f"dashboard  {link}   (opens once)", err=True)
        await server.serve(sockets=[listener])


def _stop_on_signals(server: Any) -> None:
    """Stopping as asked is exit code 0; uvicorn's own way would raise the signal again afterwards."""

    def stop() -> None:
        server.force_exit = server.should_exit  # the second time, without waiting for open connections
        server.should_exit = True

    server.capture_signals = contextlib.nullcontext
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
