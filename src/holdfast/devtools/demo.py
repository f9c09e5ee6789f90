"""`holdfast demo`: everything at once, from nothing to finished jobs, with live progress bars.

It starts the database, migrates, runs the API and a worker as processes of their own, submits the sample
jobs, watches them, says where the results are, and leaves nothing running. `--stay` keeps it up and
restarts API and worker when a Python file changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from holdfast.cli.api import open_server_socket
from holdfast.cli.output import CliOutput
from holdfast.cli.session import CliSession, pass_session
from holdfast.client import Client, JobHandle
from holdfast.devtools import demo_systems
from holdfast.devtools import sample_tasks
from holdfast.devtools.child_processes import Child, changed, interruption
from holdfast.engine import embedded, install
from holdfast.errors import HoldfastError
from holdfast.model import Job
from holdfast.settings import Secret, Settings, redact_url

RELOAD_SECONDS = 0.5
LETTERS = 30


@dataclass(frozen=True)
class Show:
    settings: Settings
    url: Secret
    out: CliOutput
    results: Path
    children: list[Child]
    token: str


@click.command()
@click.option("--stay", is_flag=True, help="Stay up afterwards, and restart API and worker on save.")
@pass_session
def demo(session: CliSession, stay: bool) -> int:
    """Run the demonstration jobs and show them live. Exit code 1 if one of them failed."""
    settings, out = session.settings, session.output
    out.print_line("Holdfast demonstration")
    url, server = embedded.locate(settings)
    try:
        out.print_line(f"  database  {redact_url(url.reveal())}")
        results = settings.home / "demo"
        results.mkdir(parents=True, exist_ok=True)
        port = _port(settings)
        here, token = demo_systems.door(settings)
        here |= session.as_environment() | {"HOLDFAST_HOME": str(settings.home.absolute())}
        served = ["api", "--port", str(port), "--system", "exports", "--system", "reports"]
        children = [
            Child("API", served, results / "api.log", environment=here),
            Child(
                "worker", ["worker", "holdfast.devtools.sample_tasks"], results / "worker.log", environment=here
            ),
            Child("systems", ["worker", demo_systems.__name__], results / "systems.log", environment=here),
        ]
        return session.run_async(_run(Show(settings, url, out, results, children, token), port, stay=stay))
    finally:
        if server:
            server.release()


def _port(settings: Settings) -> int:
    """The configured port, or any other when somebody else has it: a demonstration must not fail on that."""
    try:
        listener = open_server_socket("127.0.0.1", settings.api_port)
    except HoldfastError:
        listener = open_server_socket("127.0.0.1", 0)
    with listener:
        port: int = listener.getsockname()[1]
    return port


async def _run(show: Show, port: int, *, stay: bool) -> int:
    applied = await install.migrate(show.url, show.settings)
    show.out.print_line(f"  schema    version {applied.version}")
    interrupted = interruption()
    try:
        for child in show.children:
            await child.start()
        show.out.print_line(f"  api       http://127.0.0.1:{port}/healthz  (log: {show.results / 'api.log'})")
        show.out.print_line(f"  worker    serves holdfast.devtools.sample_tasks  (log: {show.results / 'worker.log'})")
        failed = await _unless(interrupted, _perform(show))
        if stay and failed is not None:
            for page in ("exports", "reports"):
                show.out.print_line(f"  {page:<13} http://127.0.0.1:{port}/{page}#token={show.token}")
            show.out.print_line("Up until Ctrl-C; API and worker restart when a Python file changes.")
            await _unless(interrupted, _reload(show))
        return 130 if failed is None and not stay else failed or 0
    finally:
        await asyncio.gather(*(child.stop() for child in show.children))
        show.out.print_line("Stopped; nothing is left running.")


async def _unless(interrupted: asyncio.Event, work: Coroutine[Any, Any, int]) -> int | None:
    """The work's answer, or None when TERM or Ctrl-C came first."""
    doing, waiting = asyncio.ensure_future(work), asyncio.ensure_future(interrupted.wait())
    try:
        await asyncio.wait({doing, waiting}, return_when=asyncio.FIRST_COMPLETED)
        return doing.result() if doing.done() else None
    finally:
        for each in (doing, waiting):
            each.cancel()
        await asyncio.gather(doing, waiting, return_exceptions=True)


@dataclass(frozen=True)
class End:
    """How one part of the demonstration ended, in words."""

    well: bool
    told: str


async def _perform(show: Show) -> int:
    """Submit the samples, watch them to their end, and tell. Answers with the exit code."""
    picture = show.results / "julia.png"
    async with Client(show.url.reveal(), settings=show.settings) as client:
        handles: dict[str, JobHandle[Any]] = {
            "draw": await client.submit(sample_tasks.draw(str(picture))),
            "count_primes": await client.submit(sample_tasks.count_primes(200_000)),
            "stumble": await client.submit(sample_tasks.stumble(2)),
            "graph": await client.submit(sample_tasks.primes_between(50_000, 100_000)),
            **await demo_systems.begin(client),
        }
        ends = await _watch(show, handles, client)
        files = await demo_systems.keep(client, handles, show.results)
    for name, end in ends.items():
        show.out.print_line(f"  {name:<13} {end.told}")
    for place in (picture, *files):
        show.out.print_line(f"  {place.suffix[1:]:<13} {place}")
    return 0 if all(end.well for end in ends.values()) else 1


async def _watch(show: Show, handles: dict[str, JobHandle[Any]], client: Client) -> dict[str, End]:
    columns = (
        TextColumn("  {task.description:<13}"),
        BarColumn(bar_width=30),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=show.out.console) as bars:
        parts = {name: _follow(bars, name, handle) for name, handle in handles.items()}
        parts["letters"] = _follow_letters(bars, client)
        following = [asyncio.create_task(part) for part in parts.values()]
        try:
            while not all(each.done() for each in following):
                for child in show.children:
                    child.check()
                await asyncio.wait(following, timeout=0.5)
        finally:
            for each in following:
                each.cancel()
            await asyncio.gather(*following, return_exceptions=True)
        return dict(zip(parts, (each.result() for each in following), strict=True))


async def _follow(bars: Progress, name: str, handle: JobHandle[Any]) -> End:
    bar = bars.add_task(name, total=100, note="queued")
    job: Job | None = None
    async for job in handle.watch():
        note = job.status if job.ended else job.progress.message or job.status
        bars.update(bar, completed=100 if job.ended else job.progress.percent or 0, note=note)
    assert job is not None  # noqa: S101  (watch yields at least once)
    if job.status == "succeeded":
        return End(True, f"succeeded  {job.output}")
    return End(False, f"{job.status}  {job.error.message if job.error else ''}")


async def _follow_letters(bars: Progress, client: Client) -> End:
    """Messages between services: thirty that can be read, and one that ends in the dead letters."""
    await client.queues.create(sample_tasks.LETTERS)
    before = await client.queues.metrics(sample_tasks.LETTERS)
    letters: list[object] = [sample_tasks.Letter(number, f"letter {number}") for number in range(LETTERS)]
    await client.queues.send_batch(sample_tasks.LETTERS, [*letters, {"number": LETTERS}])
    bar = bars.add_task("letters", total=LETTERS + 1, note="sent")
    while True:
        now = await client.queues.metrics(sample_tasks.LETTERS)
        done, dead = now.archived - before.archived, now.dead - before.dead  # the dead lie in the archive too
        read = done - dead
        bars.update(bar, completed=done, note=f"{read} read, {dead} dead")
        if done >= LETTERS + 1:
            return End(dead == 1, f"{read} read, {dead} unreadable one in the dead letters")
        await asyncio.sleep(0.1)


async def _reload(show: Show) -> int:
    """Restart the children when code changes, or when one has died."""
    package = Path(sample_tasks.__file__).parent.parent
    for files in changed([package, Path.cwd()]):
        for child in show.children:
            if files or not child.alive:
                why = f"{Path(min(files)).name} changed" if files else "it died"
                show.out.print_line(f"restarting the {child.name}: {why}")
                await child.stop()
                await child.start()
        await asyncio.sleep(RELOAD_SECONDS)
    return 0
