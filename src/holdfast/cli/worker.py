"""`holdfast worker APP`: run the tasks and consumers of an application until told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import click

from holdfast import webhooks
from holdfast.cli import apps, logs
from holdfast.cli.session import Session, attached_option, pass_session
from holdfast.engine import embedded, install
from holdfast.engine.connection import Database, connected
from holdfast.errors import InvalidError
from holdfast.settings import Secret, Settings, parse_duration
from holdfast.worker import Options, Worker
from holdfast.worker.declared import declare
from holdfast.worker.instruments import watched_over
from holdfast.worker.processes import Supervisor
from holdfast.worker.shares import Share, parse_shares


@click.command()
@click.argument("app")
@click.option(
    "--queues",
    "-q",
    default="",
    help="Queues to serve, with commas (default: those of the tasks and consumers). browser:4 runs at most 4 "
    "of that queue at once, mail*3 asks that queue three times as often.",
)
@click.option("--concurrency", "-c", type=click.IntRange(1, 100_000), default=10, show_default=True,
              help="Tasks that run at once, in each process.")  # fmt: skip
@click.option("--processes", "-p", type=click.IntRange(1, 1_000), default=1, show_default=True,
              help="Worker processes; those that die are started again.")  # fmt: skip
@click.option("--grace", default="25s", show_default=True, help="Time that running tasks get when stopped.")
@click.option("--drain", is_flag=True, help="End when nothing is ready any more.")
@click.option("--once", is_flag=True, help="Claim once, run what that gave, and end.")
@click.option("--max-jobs", type=click.IntRange(1), help="End after this many tasks.")
@click.option("--health-port", type=click.IntRange(0, 65535),
              help="Answer /healthz, /readyz and /metrics there; 0 takes a free one.")  # fmt: skip
@attached_option
@pass_session
def worker(session: Session, /, app: str, queues: str, **given: Any) -> None:
    """Run the tasks and consumers in APP: a file (app.py), a module, or module:attribute.

    The first TERM or Ctrl-C stops claiming, lets what runs finish within the grace and releases the rest:
    tasks without charging an attempt, messages visible at once. The second one releases at once.
    """
    settings = session.settings
    # An application's own `Client()` means the same database and the same files as its worker.
    os.environ.update(session.as_environment())  # house: environment (passed on, not read)
    if given["health_port"] is not None:
        settings = replace(settings, health_port=given["health_port"])
    logs.configure(settings)
    options = _options(queues, given)
    if given["processes"] > 1:
        sys.exit(session.run(supervise(settings, given["processes"])))
    found = apps.load(app)
    shares = [share for share in options.get("queues", ()) if isinstance(share, Share)]
    chosen = [share.queue for share in shares]
    _check_queues(found, chosen)
    url, server = embedded.locate(settings)
    if server is not None:
        options["revive"] = partial(revive, settings, server)
    options["child_types"] = frozenset(found.tasks)
    options["child"] = [sys.executable, "-u", "-m", "holdfast.cli.child", app]
    session.serve(serve(settings, url, found.only(chosen), options))


def _options(queues: str, given: dict[str, Any]) -> Options:
    try:
        patience: timedelta = parse_duration(given["grace"])
    except ValueError as problem:
        raise click.BadParameter(str(problem), param_hint="--grace") from None
    return Options(
        queues=parse_shares(queues),
        concurrency=given["concurrency"],
        grace=patience,
        until="once" if given["once"] else "drained" if given["drain"] else "stopped",
        max_jobs=given["max_jobs"],
    )


def revive(settings: Settings, server: embedded.Server) -> None:
    """Start the embedded database again, because it went down with its keeper. Called from a thread."""
    again = embedded.start(settings)
    server.release()
    server.claim = again.claim


def _check_queues(app: apps.App, chosen: list[str]) -> None:
    """A queue that nothing here runs is a typing mistake: the worker would wait for ever."""
    known = {task.queue for task in app.tasks.values()} | {c.queue for c in app.consumers.values()}
    strange = [queue for queue in chosen if queue not in known]
    if chosen and len(strange) == len(chosen):
        raise InvalidError(
            f"Nothing in the application uses {', '.join(strange)}.",
            fix=f"Its queues are {', '.join(sorted(known))}.",
            field="queues",
        )


async def supervise(settings: Settings, count: int) -> int:
    """The same command line once per process; what is said last on it counts."""

    def command(number: int) -> list[str]:
        more = ["--processes", "1", "--attached"]
        if settings.health_port:
            more += ["--health-port", str(settings.health_port + number - 1)]
        return [sys.executable, "-m", "holdfast", *sys.argv[1:], *more]

    supervisor = Supervisor(command, count)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, supervisor.stop)
    return await supervisor.run()


async def serve(settings: Settings, url: Secret, app: apps.App, options: Options) -> None:
    async with connected(url, settings) as connection:
        await install.verify(connection)
        await declare(connection, app.source, app.tasks.values(), app.schedules.values())
    async with Database(url, settings) as database:
        options["lifespan"] = app.lifespan
        tasks = webhooks.with_delivery(app.tasks, options.get("queues", ()), database)
        worker = Worker(database, tasks, list(app.consumers.values()), **options)
        with watched_over(worker, settings):
            await worker.run(_stop_on_signals(worker))


def _stop_on_signals(worker: Worker) -> asyncio.Event:
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            worker.hurry()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    return stop
