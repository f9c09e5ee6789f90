"""`holdfast dev [APP]`: everything at once on this machine, for the time of writing an application.

Database, schema, API with dashboard, a worker that starts anew when a file is saved, and sample jobs. API and
workers are processes of their own, as in production, so that one can be killed with -9 and seen to recover:
that is what the key `k` is for. Whatever happens to this process, they end with it.
"""

from __future__ import annotations

import asyncio
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import click

from holdfast.cli.api import open_server_socket, local_service_key
from holdfast.cli.keyboard import KeyboardInput
from holdfast.cli.session import CliSession, pass_session
from holdfast.client import Client
from holdfast.devtools import job_feed
from holdfast.devtools import child_processes
from holdfast.devtools import sample_tasks
from holdfast.devtools.job_feed import Feed
from holdfast.devtools.dev_processes import Stage, has_job_types, login_link
from holdfast.devtools.child_processes import Child, interruption
from holdfast.engine import embedded, install
from holdfast.errors import HoldfastError
from holdfast.formatting import format_count, sanitize_text
from holdfast.settings import redact_url

GUESSES = ("app.py", "tasks.py", "main.py")
LOOK_SECONDS = 0.4
KEYS = "keys: o open  s submit samples  k kill -9 the worker  r restart  l worker's log  q quit"


@click.command()
@click.argument("app", required=False)
@click.option("--port", type=click.IntRange(0, 65535), help="Port of API and dashboard, 0 for a free one.")
@click.option("--no-samples", is_flag=True, help="Without the sample jobs and their worker.")
@click.option("--yes", "-y", is_flag=True, help="Also on a database that is not on this machine.")
@pass_session
def dev(session: CliSession, app: str | None, port: int | None, no_samples: bool, yes: bool) -> int:
    """Run database, API, dashboard and a worker for APP that reloads on save, with sample jobs to look at.

    APP is a file, a module, or module:attribute; without it app.py or tasks.py of this folder, else only the
    samples.
    """
    app = app or next((name for name in GUESSES if Path(name).is_file()), None)
    if app is None and no_samples:
        raise click.UsageError("There is nothing to run: give an APP, or leave the samples in.")
    url, server = embedded.locate(session.settings)
    if not is_near(url.reveal()):
        where = redact_url(url.reveal())
        consequence = f"{where} is not on this machine: it is migrated, and jobs run on it."
        session.confirm(consequence, yes=yes, dry_run=False)
    try:
        stage = _stage(session, app, port, samples_too=not no_samples)
        session.output.print_line(f" database   {redact_url(url.reveal())}")
        return session.run_async(_run(session, stage, url.reveal()))
    finally:
        if server:
            server.release()


def is_near(url: str) -> bool:
    """Whether a database is on this machine: what dev does to it is nothing for one that others use."""
    parts = urlsplit(url)
    hosts = [parts.hostname or "", *parse_qs(parts.query).get("host", [])]
    return all(host in {"", "localhost", "127.0.0.1", "::1"} or host.startswith("/") for host in hosts)


def _stage(session: CliSession, app: str | None, port: int | None, *, samples_too: bool) -> Stage:
    settings = session.settings
    folder = settings.home / "dev"
    folder.mkdir(parents=True, exist_ok=True)
    chosen = _free_port(settings.api_port if port is None else port)
    environment = session.as_environment()
    served = [app] if app and has_job_types(app) else []
    arguments = ["api", *served, "--port", str(chosen)]
    api = Child("API", arguments, folder / "api.log", environment=environment)
    workers: list[Child] = []
    if app:
        workers.append(Child("worker", ["worker", app], folder / "worker.log", environment=environment))
    if samples_too:
        arguments = ["worker", sample_tasks.__name__]
        workers.append(Child("samples", arguments, folder / "samples.log", environment=environment))
    return Stage(session.output, f"http://127.0.0.1:{chosen}", api, workers, serves_app=bool(served))


def _free_port(wanted: int) -> int:
    """The wanted one, or any other when somebody has it."""
    try:
        listener = open_server_socket("127.0.0.1", wanted)
    except HoldfastError:
        listener = open_server_socket("127.0.0.1", 0)
    with listener:
        port: int = listener.getsockname()[1]
    return port


async def _run(session: CliSession, stage: Stage, url: str) -> int:
    settings, out = session.settings, session.output
    client = Client(url, settings=settings)
    database = await client.open()
    interrupted = interruption()
    try:
        applied = await install.migrate(database.url, settings)
        new = (
            f"{format_count(len(applied.versions), 'migration')} applied"
            if applied.versions
            else "up to date"
        )
        out.print_line(f" schema     version {applied.version}, {new}")
        await stage.start()
        await _say_where(session, stage, client)
        async with KeyboardInput() as keys:
            if keys.there:
                out.print_line(f" {KEYS}")
            await _loop(stage, client, keys, interrupted)
        return 0
    finally:
        await stage.stop()
        await client.close()
        out.print_line("Stopped; nothing is left running.")


async def _say_where(session: CliSession, stage: Stage, client: Client) -> None:
    out = session.output
    if await stage.answers():
        link = await login_link(client, stage.url) if await stage.has_dashboard() else None
        place = f"{stage.url}/dashboard   log in once: {link}" if link else "not served"
        out.print_line(f" dashboard  {place}")
        key = session.settings.service_key or local_service_key(session.settings.home)
        shown = "HOLDFAST_SERVICE_KEY" if session.settings.service_key else key.reveal()
        out.print_line(f" api        {stage.url}/api   key: {shown}")
    else:
        out.print_line(f" api        not up: {stage.api.last_words()}")
    for child in stage.workers:
        out.print_line(f" {child.name:<10} {_tasks_of(child)}")
    if any(child.name == "samples" for child in stage.workers):
        count = await job_feed.submit_samples(client)
        out.print_line(f" jobs       {count} samples submitted: 8 fine, 2 slow, 1 flaky, 1 broken")


def _tasks_of(child: Child) -> str:
    place = child.arguments[1]
    reload = ", reload on save" if child.name == "worker" else ""
    return f"{place}{reload}   (log: {child.log})"


async def _loop(stage: Stage, client: Client, keys: KeyboardInput, interrupted: asyncio.Event) -> None:
    """Until somebody wants to stop: show what happens, obey keys, start what changed or died."""
    feed = Feed(stage.out, stage.url)
    watching = processes.changed([Path.cwd()])
    while not interrupted.is_set():
        key = await keys.next(LOOK_SECONDS)
        if key in {"q", "end", "\x04"}:
            return
        if key is not None:
            await _obey(key, stage, client, feed)
        await feed.show(client)
        stage.greet()
        stage.show_log()
        changed = await asyncio.to_thread(next, watching)
        if changed:
            await _migrate_again(stage, client)
        await stage.mend(changed)


async def _migrate_again(stage: Stage, client: Client) -> None:
    """Whoever works on Holdfast itself saves migrations and functions too."""
    try:
        await install.migrate((await client.open()).url, client.settings)
    except HoldfastError as problem:
        stage.out.print_line(f"! {sanitize_text(str(problem), 300)}")


async def _obey(key: str, stage: Stage, client: Client, feed: Feed) -> None:
    if key == "k":
        await _kill(stage, client, feed)
    elif key == "r":
        stage.out.print_line("restarting API and worker")
        await stage.restart([stage.api, *stage.workers])
    elif key == "s":
        count = await job_feed.submit_samples(client)
        stage.out.print_line(f"{format_count(count, 'job')} submitted")
    elif key == "l":
        stage.out.print_line("worker's log: off" if stage.following else "worker's log: on")
        stage.follow(not stage.following)
    elif key == "o":
        link = await login_link(client, stage.url) or f"{stage.url}/dashboard"
        stage.out.print_line(f"open {link}")
        await asyncio.to_thread(_open, link)
    elif key == "?":
        stage.out.print_line(KEYS)


def _open(address: str) -> None:
    """In a window, if there is one; a browser for text would take our terminal."""
    with suppress(webbrowser.Error):
        browser = webbrowser.get()
        if type(browser) is not webbrowser.GenericBrowser:
            browser.open(address)


async def _kill(stage: Stage, client: Client, feed: Feed) -> None:
    """What a crash looks like: no goodbye, nothing handed in. Then a new one, and what becomes of it."""
    running = await feed.running(client)
    killed: list[Any] = [child.kill() for child in stage.workers if child.alive]
    await asyncio.gather(*killed)
    names = ", ".join(child.name for child in stage.workers)
    stage.out.print_line(f"killed with -9: {names}, while {format_count(len(running), 'job')} ran")
    feed.expect(running)
    await stage.restart(stage.workers)
    stage.out.print_line("started anew; what ran is given to the new one, with its lease over at the latest")
