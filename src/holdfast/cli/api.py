"""`holdfast api`: serve the HTTP API and the dashboard, only on loopback unless authentication is set up."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
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
from holdfast.cli import app_loader, log_output
from holdfast.cli.otlp_export import export_over_otlp
from holdfast.cli.session import CliSession, exit_with_parent_option, pass_session
from holdfast.definitions.single_database import refuse_systems_on_shards
from holdfast.engine import embedded, install
from holdfast.engine.connection import Database, open_connection
from holdfast.errors import HoldfastError, NotFoundError, RefusedError
from holdfast.extras import build_missing_extra_error, require_extra
from holdfast.setting_values import parse_shards
from holdfast.settings import Secret, Settings
from holdfast.worker.systemd_notify import SystemdNotifier, notify_systemd

SYSTEMS_PACKAGE = "holdfast.systems"
# Longer than that of load balancers (60 s is common): the one who closes first must be the one who sends the
# next request. Otherwise a request can meet a connection that is being closed, and the client gets an error.
KEEP_ALIVE_TIMEOUT_S = 75
SERVER_SHUTDOWN_TIMEOUT_S = 5  # for open responses; event streams never end by themselves


@click.command("api")
@click.argument("app", required=False)
@click.option("--host", help="Serve the API on this IP address or host name. Default: the setting api_host.")
@click.option(
    "--port",
    type=int,
    help="Serve the API on this TCP port; 0 chooses a free port. Default: the setting api_port.",
)
@click.option(
    "--system",
    "systems",
    multiple=True,
    metavar="NAME",
    help="Serve this bundled application (system) too, such as exports or reports, or the module of your "
    "own. Repeat the option to serve several systems. Default: none.",
)
@click.option(
    "--no-dashboard",
    is_flag=True,
    help="Serve the API without the dashboard. Default: serve the dashboard at /dashboard.",
)
@click.option(
    "--socket-descriptor",
    type=int,
    hidden=True,
    help="Serve on the listening socket with this file descriptor, which the parent process opened.",
)
@exit_with_parent_option
@pass_session
def api_command(session: CliSession, /, app: str | None, systems: tuple[str, ...], **options: Any) -> None:
    """Serve the HTTP API and the dashboard until stopped.

    APP is a file (app.py) or a module, as for `holdfast worker`. Clients can start its job types through the
    API. Without authentication the API listens on loopback addresses only.
    """
    check_server_extra()
    overrides = {"api_host": options["host"], "api_port": options["port"]}
    session.overrides.update({name: value for name, value in overrides.items() if value is not None})
    settings = session.settings
    log_output.configure_logging(settings)
    if not has_authentication(settings):
        refuse_non_loopback_host(settings.api_host)
    if settings.service_key is None and is_loopback_address(settings.api_host):
        settings = replace(settings, service_key=load_or_create_service_key(settings.home))
    contents = ApiServerComponents(
        app_loader.load_app(app) if app else app_loader.LoadedApp(),
        tuple(import_system(name) for name in systems),
        dashboard=not options["no_dashboard"],
    )
    if settings.shards is not None:
        refuse_systems_on_shards(system.mount for system in contents.systems)
    if (descriptor := options["socket_descriptor"]) is not None:
        listener = socket.socket(fileno=descriptor)
    else:
        listener = open_server_socket(settings.api_host, settings.api_port)
    # With shards, the first one has sessions of people and the tables of systems.
    url = next(iter(parse_shards(settings.shards.reveal()).values())) if settings.shards else None
    if url is None:
        url, _server = embedded.locate_database(settings)
    if settings.otlp_endpoint is not None:
        settings = replace(settings, tracing="on")
    with export_over_otlp(settings, "holdfast-api"):
        session.run_server(serve_api(settings, url, listener, contents))


def check_server_extra(feature: str = "The HTTP API", extra: str = "server") -> None:
    """Raise `MissingExtraError` if the packages of the extra `server` are not installed."""
    with require_extra(feature, extra):
        importlib.import_module("uvicorn")
        importlib.import_module("holdfast.server")


@dataclass(frozen=True)
class ApiServerComponents:
    """The application, the bundled applications (systems) and the dashboard that `holdfast api` serves."""

    app: app_loader.LoadedApp
    systems: tuple[ModuleType, ...] = ()
    dashboard: bool = True

    def build_app_arguments(self) -> dict[str, Any]:
        """Build the keyword arguments of `create_app` from the application and the systems."""
        from holdfast.systems import mount  # noqa: PLC0415

        own = {"job_types": self.app.types.values(), "tasks": self.app.tasks.values()}
        return mount(own, *(system.mount() for system in self.systems))


def import_system(name: str) -> ModuleType:
    """Import the module of a bundled application (system), such as `exports`, or of one of your own."""
    try:
        return importlib.import_module(f"{SYSTEMS_PACKAGE}.{name}")
    except ImportError as error:
        if error.name and error.name.startswith(SYSTEMS_PACKAGE):
            return _import_own_system(name)
        missing = build_missing_extra_error(error, f"System {name!r}")
        raise missing or error from None


def _import_own_system(name: str) -> ModuleType:
    """Import a system from a module of the current folder or of an installed package."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise NotFoundError(
                f"System {name!r} does not exist.",
                fix="Name a bundled system, or a module with `mount` and `install_if_needed`.",
                field="system",
            ) from None
        raise
    missing = [needed for needed in ("mount", "install_if_needed") if not hasattr(module, needed)]
    if missing:
        raise NotFoundError(
            f"Module {name!r} is not a system: it has no {' and no '.join(missing)}.",
            fix="See docs/guide/build-a-system.md.",
            field="system",
        )
    return module


def has_authentication(settings: Settings) -> bool:
    """Return whether the settings configure a service key or the verification of JSON Web Tokens."""
    return any(value is not None for value in (settings.service_key, settings.jwt_secret, settings.jwt_jwks))


def is_loopback_address(host: str) -> bool:
    """Return whether a host is a loopback address, which only this machine can connect to."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_non_loopback_host(host: str) -> None:
    """Raise `RefusedError` unless the host is a loopback address."""
    if not is_loopback_address(host):
        raise RefusedError(
            f"The API does not listen on {host} without authentication.",
            fix="Set HOLDFAST_SERVICE_KEY to a long random key, or HOLDFAST_JWT_SECRET to the secret "
            "that signs "
            "your tokens, or listen on 127.0.0.1.",
        )


def load_or_create_service_key(home: Path) -> Secret:
    """Return the service key in the home folder. Create a key file for its owner only if there is none."""
    path = home / "service-key"
    try:
        home.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return Secret(path.read_text(encoding="ascii").strip())
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"hf_{secrets.token_urlsafe(32)}\n")
    return Secret(path.read_text(encoding="ascii").strip())


def open_server_socket(host: str, port: int) -> socket.socket:
    """Open a listening TCP socket. Raise `HoldfastError` if the port is in use.

    The socket is opened before anything else starts, so that a busy port fails at once.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        is_in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        reason = f"Another program uses port {port}" if is_in_use else str(error)
        raise HoldfastError(
            f"Cannot listen on {host}:{port}: {reason}.",
            fix="Choose another port with --port or HOLDFAST_API_PORT (0 chooses a free one)"
            f"{', or stop that program' if is_in_use else ''}.",
        ) from error
    return listener


async def serve_api(
    settings: Settings, url: Secret, listener: socket.socket, contents: ApiServerComponents | None = None
) -> None:
    """Serve the API on an open socket until a signal stops it."""
    check_server_extra()
    import uvicorn  # noqa: PLC0415

    from holdfast.server import create_app  # noqa: PLC0415
    from holdfast.server.dashboard import create_dashboard, create_login_link  # noqa: PLC0415
    from holdfast.server.slow_clients import build_http_protocol  # noqa: PLC0415

    contents = contents or ApiServerComponents(app_loader.LoadedApp())
    async with open_connection(url, settings) as connection:
        await install.verify_schema(connection)
        for system in contents.systems:
            await system.install_if_needed(connection, settings.systems_schema)
    host, port = listener.getsockname()[:2]
    dashboard = create_dashboard if contents.dashboard else None
    async with notify_systemd() as notifier, Database(url, settings) as database:
        app = create_app(
            settings,
            database=None if settings.shards else database,
            dashboard=dashboard,
            **contents.build_app_arguments(),
        )
        config = uvicorn.Config(
            app,
            log_config=None,
            lifespan="on",
            http=build_http_protocol(settings.api_header_timeout, settings.api_idle_timeout),
            proxy_headers=bool(settings.trusted_proxies),
            forwarded_allow_ips=settings.trusted_proxies,
            server_header=False,
            timeout_graceful_shutdown=SERVER_SHUTDOWN_TIMEOUT_S,
            timeout_keep_alive=KEEP_ALIVE_TIMEOUT_S,
        )
        server = uvicorn.Server(config)
        _stop_on_signals(server, notifier)
        telemetry.emit("api.started", url=f"http://{host}:{port}")
        if contents.dashboard and is_loopback_address(host):
            async with database.connection() as connection:
                has_address = (settings.public_url or "").startswith("http")
                base = settings.public_url if has_address else f"http://{host}:{port}"
                link = await create_login_link(connection, f"{base}/dashboard")
            click.echo(f"dashboard  {link}   (this link works once)", err=True)
        notifier.mark_ready(f"Serving http://{host}:{port}.")
        gc.freeze()  # full collections stopped the event loop for 40 ms; now they skip what is loaded
        await server.serve(sockets=[listener])


def _stop_on_signals(server: Any, notifier: SystemdNotifier) -> None:
    """Stop the uvicorn server on SIGTERM and SIGINT, with exit code 0.

    uvicorn itself would raise the signal again after its shutdown.
    """

    def stop_server() -> None:
        server.force_exit = server.should_exit  # the second signal does not wait for open connections
        server.should_exit = True
        notifier.mark_stopping("Finishing open requests.")

    server.capture_signals = contextlib.nullcontext
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop_server)
