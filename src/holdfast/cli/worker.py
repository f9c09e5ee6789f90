"""`holdfast worker APP`: run the tasks and consumers of an application until it is stopped."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

import click

from holdfast.cli import app_loader, log_output
from holdfast.cli.otlp_export import export_over_otlp
from holdfast.cli.session import CliSession, exit_with_parent_option, pass_session
from holdfast.client import Client
from holdfast.errors import InvalidError
from holdfast.settings import Settings, parse_duration
from holdfast.worker.public_worker import Worker
from holdfast.worker.queue_shares import parse_queue_shares
from holdfast.worker.supervisor import Supervisor
from holdfast.worker.systemd_notify import SystemdNotifier, notify_systemd

MEDIA_SYSTEM = "holdfast.systems.media"


@click.command("worker")
@click.argument("app")
@click.option(
    "--queues",
    "-q",
    default="",
    help="Run only tasks and messages of these queues, separated by commas. browser:4 runs at most "
    "4 tasks of queue browser at once; mail*3 claims from queue mail three times as often. "
    "Default: all queues of APP.",
)
@click.option(
    "--concurrency",
    "-c",
    type=click.IntRange(1, 100_000),
    default=10,
    show_default=True,
    help="Run at most this many tasks at once in each worker process.",
)
@click.option(
    "--processes",
    "-p",
    type=click.IntRange(1, 1_000),
    help="Start this many worker processes, and restart each process that dies. Default: 1, or the setting "
    "download_workers for holdfast.systems.media.",
)
@click.option(
    "--grace",
    default="25s",
    show_default=True,
    help="Give running tasks this long to finish after the worker receives SIGTERM or Ctrl-C.",
)
@click.option(
    "--drain", is_flag=True, help="Exit when no task is ready any more. Default: run until stopped."
)
@click.option(
    "--once", is_flag=True, help="Claim tasks once, run them, and exit. Default: run until stopped."
)
@click.option(
    "--max-tasks", type=click.IntRange(1), help="Exit after running this many tasks. Default: no limit."
)
@click.option(
    "--health-port",
    type=click.IntRange(0, 65535),
    help="Serve /healthz, /readyz and /metrics on this TCP port; 0 chooses a free port. Default: "
    "the setting health_port.",
)
@click.option(
    "--shard",
    "shards",
    type=click.IntRange(0, 255),
    multiple=True,
    help="Serve only this shard of the setting shards; repeat it for several. Default: all shards.",
)
@click.option(
    "--no-wait",
    is_flag=True,
    help="Exit with code 6 if the database cannot be reached at the start. Default: wait for it.",
)
@exit_with_parent_option
@pass_session
def worker_command(session: CliSession, /, app: str, queues: str, **options: Any) -> None:
    """Run the tasks and consumers of APP: a file (app.py), a module, or module:attribute.

    The first SIGTERM or Ctrl-C stops claiming and lets running tasks finish within the grace. Then the worker
    releases the rest: other workers run those tasks again without counting an attempt, and messages become
    visible at once. The second signal releases everything at once.

    While the database cannot be reached, the worker waits for it, at the start and later. A missing or
    outdated schema ends the command: run `holdfast migrate` first.
    """
    settings = session.settings
    # A `Client()` in the application uses the same database and the same object store as its worker.
    os.environ.update(session.settings_as_environment())  # house: environment (passed on, not read)
    if options["health_port"] is not None:
        settings = replace(settings, health_port=options["health_port"])
    log_output.configure_logging(settings)
    options["grace"] = _parse_grace(options["grace"])
    options["queues"] = parse_queue_shares(queues)
    if options["processes"] is None:
        is_media = app.partition(":")[0] == MEDIA_SYSTEM
        options["processes"] = (settings.download_workers if is_media else None) or 1
    if options["processes"] > 1:
        sys.exit(session.run_async(supervise_processes(settings, options["processes"])))
    if settings.otlp_endpoint is not None:
        settings = replace(settings, tracing="on")
    with export_over_otlp(settings, "holdfast-worker"):
        session.run_server(run_worker(settings, app, app_loader.load_app(app), options))


def _parse_grace(text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--grace") from None


async def run_worker(
    settings: Settings, app_name: str, app: app_loader.LoadedApp, options: dict[str, Any]
) -> None:
    queues = [share.queue for share in options["queues"]]
    _check_queue_names(app, queues)
    async with notify_systemd() as notifier, Client(settings=settings) as client:
        worker = Worker(
            client,
            tasks=app.tasks.values(),
            consumers=app.with_consumers_of(queues).consumers.values(),
            schedules=app.schedules.values(),
            lifespan=app.lifespan,
            queues=options["queues"],
            concurrency=options["concurrency"],
            grace=options["grace"],
            until="once" if options["once"] else "drained" if options["drain"] else "stopped",
            max_tasks=options["max_tasks"],
            source=app.source,
            child_command=[sys.executable, "-u", "-m", "holdfast.cli.child", app_name],
            wait_for_database=not options["no_wait"],
            shards=options["shards"] or None,
        )
        _stop_on_signals(worker, notifier)
        async with worker:
            notifier.mark_ready("Running tasks.")
            gc.freeze()  # full collections stopped the event loop for 40 ms; now they skip what is loaded
            await worker.run()


def _check_queue_names(app: app_loader.LoadedApp, queues: list[str]) -> None:
    """Raise `InvalidError` if no task or consumer of the application uses the given queues."""
    known = {task.queue for task in app.tasks.values()} | {c.queue for c in app.consumers.values()}
    unknown = [queue for queue in queues if queue not in known]
    if queues and len(unknown) == len(queues):
        raise InvalidError(
            f"Nothing in the application uses {', '.join(unknown)}.",
            fix=f"Its queues are {', '.join(sorted(known))}.",
            field="queues",
        )


def _stop_on_signals(worker: Worker, notifier: SystemdNotifier) -> None:
    signals_received = 0

    def handle_signal() -> None:
        nonlocal signals_received
        signals_received += 1
        worker.stop(graceful=signals_received == 1)
        notifier.mark_stopping("Finishing running tasks.")

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, handle_signal)


async def supervise_processes(settings: Settings, count: int) -> int:
    """Run this command line in `count` processes, and restart those that die. Return the exit code."""

    def build_command(number: int) -> list[str]:
        overrides = ["--processes", "1", "--exit-with-parent"]
        if settings.health_port:
            overrides += ["--health-port", str(settings.health_port + number - 1)]
        return [sys.executable, "-m", "holdfast", *sys.argv[1:], *overrides]

    async with notify_systemd() as notifier:
        supervisor = Supervisor(build_command, count)

        def stop_processes() -> None:
            supervisor.stop()
            notifier.mark_stopping("Stopping the worker processes.")

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop_processes)
        notifier.mark_ready(f"Running {count} worker processes.")
        return await supervisor.run()
