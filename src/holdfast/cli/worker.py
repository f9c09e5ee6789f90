"""`holdfast worker APP`: run the tasks and consumers of an application until told to stop."""

from __future__ import annotations

import asyncio
import signal
from datetime import timedelta

import click

from holdfast.cli import apps, logs
from holdfast.cli.session import Session, attached_option, pass_session
from holdfast.engine import embedded, install
from holdfast.engine.connection import Database, connected
from holdfast.settings import Secret, Settings, parse_duration
from holdfast.worker import Worker


@click.command()
@click.argument("app")
@click.option(
    "--queues",
    "-q",
    default="",
    help="Queues to serve, with commas (default: those of the tasks and consumers).",
)
@click.option("--concurrency", "-c", type=click.IntRange(1, 100_000), default=10, show_default=True,
              help="Tasks that run at once.")  # fmt: skip
@click.option("--grace", default="25s", show_default=True, help="Time that running tasks get when stopped.")
@attached_option
@pass_session
def worker(session: Session, app: str, queues: str, concurrency: int, grace: str) -> None:
    """Run the tasks and consumers in APP: a file (app.py), a module, or module:attribute.

    The first TERM or Ctrl-C stops claiming, lets what runs finish within the grace and releases the rest:
    tasks without charging an attempt, messages visible at once. The second one releases at once.
    """
    settings = session.settings
    logs.configure(settings)
    try:
        patience = parse_duration(grace)
    except ValueError as problem:
        raise click.BadParameter(str(problem), param_hint="--grace") from None
    found = apps.load(app)
    url, _server = embedded.locate(settings)
    chosen = [name.strip() for name in queues.split(",") if name.strip()]
    session.serve(serve(settings, url, found.only(chosen), chosen, concurrency, patience))


async def serve(
    settings: Settings,
    url: Secret,
    app: apps.App,
    queues: list[str],
    concurrency: int,
    grace: timedelta,
) -> None:
    async with connected(url, settings) as connection:
        await install.verify(connection)
    async with Database(url, settings) as database:
        consumers = list(app.consumers.values())
        worker = Worker(database, app.tasks, consumers, queues=queues, concurrency=concurrency, grace=grace)
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
