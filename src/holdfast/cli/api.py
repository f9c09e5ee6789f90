"""`holdfast api`: the HTTP API, on loopback unless authentication is configured."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import secrets
import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from holdfast import telemetry
from holdfast.cli import logs
from holdfast.cli.session import Session, attached_option, pass_session
from holdfast.engine import embedded, install
from holdfast.engine.connection import Database, connected
from holdfast.errors import HoldfastError, RefusedError
from holdfast.settings import Secret, Settings


@click.command()
@click.option("--host", help="Address to listen on (setting api_host).")
@click.option("--port", type=int, help="Port to listen on, 0 for a free one (setting api_port).")
@attached_option
@pass_session
def api(session: Session, host: str | None, port: int | None) -> None:
    """Serve the HTTP API until stopped."""
    overrides = {"api_host": host, "api_port": port}
    session.overrides.update({name: value for name, value in overrides.items() if value is not None})
    settings = session.settings
    logs.configure(settings)
    key = settings.service_key
    if key is None:
        refuse_beyond_loopback(settings.api_host)
        key = local_service_key(settings.home)
    listener = listen(settings.api_host, settings.api_port)
    url, _server = embedded.locate(settings)
    session.serve(serve(replace(settings, service_key=key), url, listener))


def refuse_beyond_loopback(host: str) -> None:
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise RefusedError(
            f"The API does not listen on {host} without authentication.",
            fix="Set HOLDFAST_SERVICE_KEY to a long random key, or listen on 127.0.0.1.",
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


async def serve(settings: Settings, url: Secret, listener: socket.socket) -> None:
    try:  # the web framework is an extra
        import uvicorn  # noqa: PLC0415

        from holdfast.api import create_app  # noqa: PLC0415
    except ImportError as problem:
        raise HoldfastError(
            f"The API needs a package that is not installed: {problem.name}.",
            fix="pip install 'holdfast[server]'",
        ) from problem
    async with connected(url, settings) as connection:
        await install.verify(connection)
    host, port = listener.getsockname()[:2]
    async with Database(url, settings) as database:
        config = uvicorn.Config(
            create_app(settings, database=database), log_config=None, lifespan="on", server_header=False
        )
        server = uvicorn.Server(config)
        _stop_on_signals(server)
        telemetry.emit("api.started", url=f"http://{host}:{port}")
        await server.serve(sockets=[listener])


def _stop_on_signals(server: Any) -> None:
    """Stopping as asked is exit code 0; uvicorn's own way would raise the signal again afterwards."""

    def stop() -> None:
        server.force_exit = server.should_exit  # the second time, without waiting for open connections
        server.should_exit = True

    server.capture_signals = contextlib.nullcontext
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
