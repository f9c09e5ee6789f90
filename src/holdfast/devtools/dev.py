"""`holdfast dev [APP]`: run the database, the API, the dashboard and a worker, for local development.

The worker restarts when a file is saved. Without an application, sample jobs give the dashboard something
to show. The API and the workers are separate processes, as in production. The key `k` kills the workers with
SIGKILL, to show that their jobs recover. However this process ends, its child processes end with it.
"""

from __future__ import annotations

import asyncio
import socket
import webbrowser
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import click

from holdfast.cli.api import check_server_extra, load_or_create_service_key
from holdfast.cli.keyboard import KeyboardInput
from holdfast.cli.session import CliSession, pass_session
from holdfast.client import Client, open_client_database
from holdfast.devtools import sample_tasks
from holdfast.devtools.api_socket import get_port, open_api_socket
from holdfast.devtools.child_processes import ManagedProcess, create_interrupt_event, watch_python_files
from holdfast.devtools.dev_processes import DevProcesses, create_login_link, has_job_types
from holdfast.devtools.job_feed import JobFeed, submit_sample_jobs
from holdfast.engine import embedded, install
from holdfast.errors import HoldfastError
from holdfast.formatting import format_count, sanitize_text
from holdfast.settings import redact_url

DEFAULT_APP_FILES = ("app.py", "tasks.py", "main.py")
KEY_POLL_INTERVAL_S = 0.4
QUIT_KEYS = {"q", "end", "\x04"}
LOCAL_HOST_NAMES = {"", "localhost", "127.0.0.1", "::1"}
KEY_HELP = "keys: o open dashboard  s submit samples  k kill -9 workers  r restart  l worker log  q quit"


@click.command("dev")
@click.argument("app", required=False)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Serve the API and the dashboard on this TCP port; 0 chooses a free port. Default: the "
    "setting api_port, or the next free port if that is not set and the port is in use.",
)
@click.option(
    "--samples/--no-samples",
    default=None,
    help="Submit sample jobs and run a worker for them. Default: only if there is no APP and the "
    "database is the embedded one.",
)
@click.option(
    "--yes",
    "-y",
    is_flag=True,
    help="Skip the confirmation prompt for a database on another machine. Default: ask.",
)
@pass_session
def dev_command(
    session: CliSession, app: str | None, port: int | None, samples: bool | None, yes: bool
) -> int:
    """Run the database, the API, the dashboard and a worker for APP, with reload on save.

    APP is a file (app.py), a module, or module:attribute. Default: app.py, tasks.py or main.py in the current
    folder; if there is none, sample jobs run.
    """
    check_server_extra("holdfast dev", "dev")
    app = app or next((name for name in DEFAULT_APP_FILES if Path(name).is_file()), None)
    if app is None and samples is False:
        raise click.UsageError("There is nothing to run: give an APP, or leave out --no-samples.")
    url, server = embedded.locate_database(session.settings)
    if samples is None:  # jobs that nobody asked for do not belong into the user's own database
        samples = app is None and server is not None
    if app is None and not samples:
        raise click.UsageError(
            "There is nothing to run: give an APP, such as `holdfast dev app.py`, or add --samples."
        )
    if not is_local_database(url.reveal()):
        consequence = (
            f"{redact_url(url.reveal())} is not on this machine; this migrates it and runs jobs on it."
        )
        session.confirm(consequence, yes=yes, dry_run=False)
    try:
        with open_api_socket(session.settings, port, session.output.print_line) as listener:
            processes = _build_dev_processes(session, app, listener, with_samples=samples)
            session.output.print_line(f" database   {redact_url(url.reveal())}")
            return session.run_async(_run_dev_processes(session, processes, url.reveal()))
    finally:
        if server:
            server.release()


def is_local_database(url: str) -> bool:
    """Return whether the host in a database URL is this machine."""
    parts = urlsplit(url)
    hosts = [parts.hostname or "", *parse_qs(parts.query).get("host", [])]
    return all(host in LOCAL_HOST_NAMES or host.startswith("/") for host in hosts)


def _build_dev_processes(
    session: CliSession, app: str | None, listener: socket.socket, *, with_samples: bool
) -> DevProcesses:
    folder = session.settings.home / "dev"
    folder.mkdir(parents=True, exist_ok=True)
    environment = session.settings_as_environment()
    served_app = [app] if app and has_job_types(app) else []
    api = ManagedProcess(
        "API", ["api", *served_app], folder / "api.log", environment=environment, listener=listener
    )
    workers: list[ManagedProcess] = []
    if app:
        workers.append(
            ManagedProcess("worker", ["worker", app], folder / "worker.log", environment=environment)
        )
    if with_samples:
        arguments = ["worker", sample_tasks.__name__]
        workers.append(ManagedProcess("samples", arguments, folder / "samples.log", environment=environment))
    url = f"http://127.0.0.1:{get_port(listener)}"
    return DevProcesses(session.output, url, api, workers, serves_app=bool(served_app))


async def _run_dev_processes(session: CliSession, processes: DevProcesses, url: str) -> int:
    settings, output = session.settings, session.output
    client = Client(url, settings=settings)
    database = await open_client_database(client)
    interrupted = create_interrupt_event()
    try:
        applied = await install.migrate_database(database.url, settings)
        change = "up to date"
        if applied.versions:
            change = f"{format_count(len(applied.versions), 'migration')} applied"
        output.print_line(f" schema     version {applied.version}, {change}")
        await processes.start()
        await _print_addresses(session, processes, client)
        async with KeyboardInput() as keyboard:
            if keyboard.is_available:
                output.print_line(f" {KEY_HELP}")
            await _run_until_quit(processes, client, keyboard, interrupted)
        return 0
    finally:
        await processes.stop()
        await client.close()
        output.print_line("Stopped all processes.")


async def _print_addresses(session: CliSession, processes: DevProcesses, client: Client) -> None:
    output = session.output
    if await processes.wait_for_api():
        has_dashboard = await processes.has_dashboard()
        link = await create_login_link(client, processes.url) if has_dashboard else None
        address = f"{processes.url}/dashboard   log in once: {link}" if link else "not available"
        output.print_line(f" dashboard  {address}")
        key = session.settings.service_key or load_or_create_service_key(session.settings.home)
        shown_key = "HOLDFAST_SERVICE_KEY" if session.settings.service_key else key.reveal()
        output.print_line(f" api        {processes.url}/api   key: {shown_key}")
    else:
        output.print_line(f" api        not started: {processes.api.read_last_error()}")
    for process in processes.workers:
        output.print_line(f" {process.name:<10} {_format_worker_line(process)}")
    if processes.runs_samples:
        count = await submit_sample_jobs(client)
        output.print_line(f" jobs       submitted {count} samples: 8 fast, 2 slow, 1 flaky, 1 failing")


def _format_worker_line(process: ManagedProcess) -> str:
    app = process.arguments[1]
    reload_note = ", reload on save" if process.name == "worker" else ""
    return f"{app}{reload_note}   (log: {process.log})"


async def _run_until_quit(
    processes: DevProcesses, client: Client, keyboard: KeyboardInput, interrupted: asyncio.Event
) -> None:
    """Print changes of jobs, handle key presses and reload changed code, until the user quits."""
    feed = JobFeed(processes.output, processes.url)
    file_changes = watch_python_files([Path.cwd()])
    while not interrupted.is_set():
        key = await keyboard.next_key(KEY_POLL_INTERVAL_S)
        if key in QUIT_KEYS:
            return
        if key is not None:
            await _handle_key(key, processes, client, feed)
        await feed.print_changes(client)
        processes.print_started_workers()
        processes.print_new_log_lines()
        changed_files = await asyncio.to_thread(next, file_changes)
        if changed_files:
            await _apply_changed_migrations(processes, client)
        await processes.restart_if_code_changed(changed_files)


async def _apply_changed_migrations(processes: DevProcesses, client: Client) -> None:
    """Apply changed migrations and SQL functions of Holdfast itself to the database."""
    try:
        await install.migrate_database((await open_client_database(client)).url, client.settings)
    except HoldfastError as error:
        processes.output.print_line(f"! {sanitize_text(str(error), 300)}")


async def _handle_key(key: str, processes: DevProcesses, client: Client, feed: JobFeed) -> None:
    output = processes.output
    if key == "k":
        await _kill_workers(processes, client, feed)
    elif key == "r":
        output.print_line("restarting API and workers")
        await processes.restart(processes.all_processes)
    elif key == "s" and not processes.runs_samples:
        output.print_line("no worker for samples: start with `holdfast dev --samples`")
    elif key == "s":
        count = await submit_sample_jobs(client)
        output.print_line(f"submitted {format_count(count, 'job')}")
    elif key == "l":
        processes.toggle_log()
        output.print_line(f"worker log: {'on' if processes.shows_log else 'off'}")
    elif key == "o":
        link = await create_login_link(client, processes.url) or f"{processes.url}/dashboard"
        output.print_line(f"open {link}")
        await asyncio.to_thread(_open_browser, link)
    elif key == "?":
        output.print_line(KEY_HELP)


def _open_browser(url: str) -> None:
    """Open the URL in a graphical browser. Do nothing if there is only a text browser."""
    with suppress(webbrowser.Error):
        browser = webbrowser.get()
        if type(browser) is not webbrowser.GenericBrowser:
            browser.open(url)


async def _kill_workers(processes: DevProcesses, client: Client, feed: JobFeed) -> None:
    """Kill the workers with SIGKILL, start new workers, and let the job feed print the recovery."""
    running = await feed.list_running_jobs(client)
    await asyncio.gather(*(process.kill() for process in processes.workers if process.is_running))
    names = ", ".join(process.name for process in processes.workers)
    processes.output.print_line(f"killed with -9: {names}, with {format_count(len(running), 'running job')}")
    feed.expect_recovery(running)
    await processes.restart(processes.workers)
    processes.output.print_line("restarted; the new workers take over the jobs when their leases expire")
