"""`holdfast demo`: run sample jobs from an empty database to their results, with live progress bars.

It starts the database, migrates it, runs the API and workers as separate processes, submits the sample jobs,
shows their progress, prints where the results are, and stops everything. `--keep-running` keeps the processes
running and restarts them when a Python file changes.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from holdfast.cli.api import check_server_extra
from holdfast.cli.output import CliOutput
from holdfast.cli.session import CliSession, pass_session
from holdfast.client import Client, JobHandle
from holdfast.devtools import sample_tasks
from holdfast.devtools.api_socket import get_port, open_api_socket
from holdfast.devtools.child_processes import ManagedProcess, create_interrupt_event, watch_python_files
from holdfast.devtools.dev_processes import create_login_link
from holdfast.engine import embedded, install
from holdfast.extras import require_extra
from holdfast.model import Job
from holdfast.settings import Secret, Settings, redact_url

if TYPE_CHECKING:
    from types import ModuleType

PROCESS_CHECK_INTERVAL_S = 0.5
VALID_DEMO_MESSAGE_COUNT = 30
DEMO_SYSTEMS_MODULE = "holdfast.devtools.demo_systems"


@dataclass(frozen=True)
class DemoRun:
    """One run of `holdfast demo`: its settings, child processes and output folder."""

    settings: Settings
    url: Secret
    output: CliOutput
    folder: Path
    processes: list[ManagedProcess]
    token: str
    sites: dict[str, socket.socket]  # local websites by system; without what this machine cannot run
    port: int


@click.command("demo")
@click.option(
    "--keep-running",
    is_flag=True,
    help="Keep the API and the workers running after the sample jobs, with reload on save. "
    "Default: stop them.",
)
@pass_session
def demo_command(session: CliSession, keep_running: bool) -> int:
    """Run sample jobs and show their progress. Exit with code 1 if one of them fails.

    This command needs the extra `demo`.
    """
    demo_systems = _import_demo_systems()
    settings, output = session.settings, session.output
    output.print_line("Holdfast demo")
    url, server = embedded.locate_database(settings)
    try:
        output.print_line(f"  database  {redact_url(url.reveal())}")
        folder = settings.home / "demo"
        folder.mkdir(parents=True, exist_ok=True)
        environment, token = demo_systems.create_demo_credentials(settings)
        environment |= session.settings_as_environment() | {"HOLDFAST_HOME": str(settings.home.absolute())}
        sites = _open_sites(settings, output)
        environment |= _allow_sites(settings, sites)
        with open_api_socket(settings, None, output.print_line) as listener:
            processes = _build_demo_processes(folder, listener, environment, list(sites))
            run = DemoRun(settings, url, output, folder, processes, token, sites, get_port(listener))
            return session.run_async(_run_demo(run, keep_running=keep_running))
    finally:
        if server:
            server.release()


def _import_demo_bookmarks() -> ModuleType:
    with require_extra("holdfast demo", "demo"):
        from holdfast.devtools import demo_bookmarks  # noqa: PLC0415
    return demo_bookmarks


def _import_demo_media() -> ModuleType:
    with require_extra("holdfast demo", "demo"):
        from holdfast.devtools import demo_media  # noqa: PLC0415
    return demo_media


def _import_demo_clips() -> ModuleType:
    with require_extra("holdfast demo", "demo"):
        from holdfast.devtools import demo_clips  # noqa: PLC0415
    return demo_clips


def _import_demo_systems() -> ModuleType:
    check_server_extra("holdfast demo", "demo")
    with require_extra("holdfast demo", "demo"):
        from holdfast.devtools import demo_systems  # noqa: PLC0415
    return demo_systems


def _open_sites(settings: Settings, output: CliOutput) -> dict[str, socket.socket]:
    """Open a socket for the local website of each system that this machine can run."""
    missing_parts = {
        "bookmarks": _import_demo_bookmarks().find_missing_part(settings),
        "media": _import_demo_media().find_missing_part(),
        "clips": _import_demo_clips().find_missing_part(),
    }
    for name, missing in missing_parts.items():
        if missing is not None:
            output.print_line(f"  {name} are left out: {missing}")
    return {
        name: socket.create_server(("127.0.0.1", 0))
        for name, missing in missing_parts.items()
        if missing is None
    }


def _allow_sites(settings: Settings, sites: dict[str, socket.socket]) -> dict[str, str]:
    """Return the environment variable with which workers may reach the local websites."""
    addresses = [f"127.0.0.1:{site.getsockname()[1]}" for site in sites.values()]
    entries = [entry for entry in (settings.egress_allow, *addresses) if entry]
    return {"HOLDFAST_EGRESS_ALLOW": ",".join(entries)} if entries else {}


def _build_demo_processes(
    folder: Path, listener: socket.socket, environment: dict[str, str], systems: list[str]
) -> list[ManagedProcess]:
    commands = {
        "API": ["api", "--system", "exports", "--system", "reports"],
        "worker": ["worker", sample_tasks.__name__],
        "systems": ["worker", DEMO_SYSTEMS_MODULE],
    }
    for name in systems:
        commands["API"] += ["--system", name]
        commands[name] = ["worker", f"holdfast.systems.{name}"]
    return [
        ManagedProcess(
            name,
            arguments,
            folder / f"{name.lower()}.log",
            environment=environment,
            listener=listener if name == "API" else None,
        )
        for name, arguments in commands.items()
    ]


async def _run_demo(run: DemoRun, *, keep_running: bool) -> int:
    applied = await install.migrate_database(run.url, run.settings)
    run.output.print_line(f"  schema    version {applied.version}")
    interrupted = create_interrupt_event()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(run.url.reveal(), settings=run.settings))
        if "bookmarks" in run.sites:
            demo_bookmarks = _import_demo_bookmarks()
            await stack.enter_async_context(demo_bookmarks.serve_site(run.sites["bookmarks"]))
            await demo_bookmarks.install_bookmarks(client)
        if "media" in run.sites:
            demo_media = _import_demo_media()
            await stack.enter_async_context(demo_media.serve_film(run.sites["media"]))
            await demo_media.install_media(client)
        if "clips" in run.sites:
            demo_clips = _import_demo_clips()
            await stack.enter_async_context(demo_clips.serve_videos(run.sites["clips"]))
            await demo_clips.install_clips(client)
        return await _run_processes(run, interrupted, keep_running=keep_running)


async def _run_processes(run: DemoRun, interrupted: asyncio.Event, *, keep_running: bool) -> int:
    url = f"http://127.0.0.1:{run.port}"
    try:
        for process in run.processes:
            await process.start()
        run.output.print_line(f"  api       {url}/healthz  (log: {run.folder / 'api.log'})")
        run.output.print_line(f"  worker    {sample_tasks.__name__}  (log: {run.folder / 'worker.log'})")
        exit_code = await _run_until_interrupted(interrupted, _run_sample_jobs(run))
        if keep_running and exit_code is not None:
            await _print_addresses(run, url)
            run.output.print_line("Running until Ctrl-C; the processes restart when a Python file changes.")
            await _run_until_interrupted(interrupted, _restart_on_file_change(run))
        return 130 if exit_code is None and not keep_running else exit_code or 0
    finally:
        await asyncio.gather(*(process.stop() for process in run.processes))
        run.output.print_line("Stopped all processes.")


async def _print_addresses(run: DemoRun, url: str) -> None:
    """Print the addresses of the front door and of the dashboard, with which one is signed in at once."""
    async with Client(run.url.reveal(), settings=run.settings) as client:
        dashboard = await create_login_link(client, url)
    run.output.print_line(f"  {'front door':<17} {url}/#token={run.token}")
    run.output.print_line(f"  {'dashboard':<17} {dashboard}   (this link works once, for 15 minutes)")


async def _run_until_interrupted(interrupted: asyncio.Event, work: Coroutine[Any, Any, int]) -> int | None:
    """Return the result of a coroutine, or None if SIGTERM or Ctrl-C interrupts it."""
    work_task, interrupt_task = asyncio.ensure_future(work), asyncio.ensure_future(interrupted.wait())
    try:
        await asyncio.wait({work_task, interrupt_task}, return_when=asyncio.FIRST_COMPLETED)
        return work_task.result() if work_task.done() else None
    finally:
        for each in (work_task, interrupt_task):
            each.cancel()
        await asyncio.gather(work_task, interrupt_task, return_exceptions=True)


@dataclass(frozen=True)
class DemoResult:
    """The outcome of one part of the demo: whether it succeeded, and a line of text."""

    succeeded: bool
    text: str


async def _run_sample_jobs(run: DemoRun) -> int:
    """Submit the sample jobs, follow them until they end, and print the results. Return the exit code."""
    demo_systems = _import_demo_systems()
    picture = run.folder / "julia.png"
    async with Client(run.url.reveal(), settings=run.settings) as client:
        handles: dict[str, JobHandle[Any]] = {
            "draw_julia_set": await client.submit(sample_tasks.draw_julia_set(str(picture))),
            "count_primes": await client.submit(sample_tasks.count_primes(200_000)),
            "fail_then_succeed": await client.submit(sample_tasks.fail_then_succeed(2)),
            "primes_between": await client.submit(sample_tasks.build_prime_graph(50_000, 100_000)),
            **await demo_systems.submit_demo_jobs(client),
        }
        results = await _follow_demo_parts(run, handles, client)
        files = await demo_systems.copy_result_files(client, handles, run.folder)
        bookmark_lines = await _describe_bookmarks(run, client) if "bookmarks" in run.sites else []
    for name, result in results.items():
        run.output.print_line(f"  {name:<17} {result.text}")
    for path in (picture, *files):
        run.output.print_line(f"  {path.suffix[1:]:<17} {path}")
    for line in bookmark_lines:
        run.output.print_line(line)
    return 0 if all(result.succeeded for result in results.values()) else 1


async def _follow_demo_parts(
    run: DemoRun, handles: dict[str, JobHandle[Any]], client: Client
) -> dict[str, DemoResult]:
    """Show a progress bar per job until all have ended. Raise `HoldfastError` if a process exits."""
    columns = (
        TextColumn("  {task.description:<17}"),
        BarColumn(bar_width=30),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=run.output.console) as bars:
        parts = {name: _follow_demo_job(bars, name, handle) for name, handle in handles.items()}
        parts["messages"] = _send_and_follow_messages(bars, client)
        if "bookmarks" in run.sites:
            parts["bookmarks"] = _add_and_follow_bookmarks(bars, client, run.sites["bookmarks"])
        if "media" in run.sites:
            parts["media"] = _add_and_follow_media(bars, client, run)
        if "clips" in run.sites:
            parts["clips"] = _add_and_follow_clips(bars, client, run.sites["clips"])
        followers = [asyncio.create_task(part) for part in parts.values()]
        try:
            while not all(follower.done() for follower in followers):
                for process in run.processes:
                    process.check_running()
                await asyncio.wait(followers, timeout=PROCESS_CHECK_INTERVAL_S)
        finally:
            for follower in followers:
                follower.cancel()
            await asyncio.gather(*followers, return_exceptions=True)
        return dict(zip(parts, (follower.result() for follower in followers), strict=True))


async def _follow_demo_job(bars: Progress, name: str, handle: JobHandle[Any]) -> DemoResult:
    bar = bars.add_task(name, total=100, note="queued")
    job: Job | None = None
    async for job in handle.watch():
        note = job.status if job.ended else job.progress.message or job.status
        bars.update(bar, completed=100 if job.ended else job.progress.percent or 0, note=note)
    assert job is not None  # noqa: S101  (watch yields at least once)
    if job.status == "succeeded":
        return DemoResult(True, f"succeeded  {job.output}")
    return DemoResult(False, f"{job.status}  {job.error.message if job.error else ''}")


async def _send_and_follow_messages(bars: Progress, client: Client) -> DemoResult:
    """Send thirty valid messages and an invalid one, and follow them until all are in the archive."""
    queue = sample_tasks.SAMPLE_MESSAGE_QUEUE
    await client.queues.create(queue)
    before = await client.queues.metrics(queue)
    bodies: list[object] = [
        sample_tasks.SampleMessage(number, f"message {number}") for number in range(VALID_DEMO_MESSAGE_COUNT)
    ]
    await client.queues.send_batch(queue, [*bodies, {"number": VALID_DEMO_MESSAGE_COUNT}])
    bar = bars.add_task("messages", total=VALID_DEMO_MESSAGE_COUNT + 1, note="sent")
    while True:
        now = await client.queues.metrics(queue)
        # Dead letters are in the archive too.
        ended, dead = now.archived - before.archived, now.dead - before.dead
        read = ended - dead
        bars.update(bar, completed=ended, note=f"{read} read, {dead} dead")
        if ended >= VALID_DEMO_MESSAGE_COUNT + 1:
            return DemoResult(dead == 1, f"{read} read, {dead} invalid one in the dead letters")
        await asyncio.sleep(0.1)


async def _add_and_follow_bookmarks(bars: Progress, client: Client, site: socket.socket) -> DemoResult:
    """Save three pages of the local site, and follow them until they are complete."""
    owner, demo_bookmarks = _import_demo_systems().DEMO_USER_ID, _import_demo_bookmarks()
    await demo_bookmarks.add_demo_bookmarks(client, owner, site)
    count = len(demo_bookmarks.SITE_PAGES)
    bar = bars.add_task("bookmarks", total=count, note="saved")

    def show_progress(ended: int) -> None:
        bars.update(bar, completed=ended, note=f"{ended} of {count} pages")

    rows = await demo_bookmarks.wait_for_bookmarks(client, owner, show_progress)
    complete = [row for row in rows if row["status"] == "complete"]
    failed = [row["screenshot_error"] or row["remaining_error"] for row in rows if row not in complete]
    return DemoResult(len(complete) == count, "; ".join([f"{len(complete)} of {count} complete", *failed]))


async def _add_and_follow_media(bars: Progress, client: Client, run: DemoRun) -> DemoResult:
    """Share a film of the local site, follow its download in bytes, and copy its poster and transcript."""
    demo_media = _import_demo_media()
    share = await demo_media.add_demo_share(client, _import_demo_systems().DEMO_USER_ID, run.sites["media"])
    bar = bars.add_task("media", total=100, note="shared")

    def show_progress(percent: float, note: str) -> None:
        bars.update(bar, completed=percent, note=note)

    share = await demo_media.wait_for_share(client, share, show_progress)
    succeeded, text = demo_media.describe_result(share)
    paths = await demo_media.copy_share_files(client, share, run.folder)
    bars.update(bar, completed=100 if succeeded else None, note="complete" if succeeded else "failed")
    return DemoResult(succeeded, "\n".join([text, *(f"  {'':<17} {path}" for path in paths)]))


async def _add_and_follow_clips(bars: Progress, client: Client, site: socket.socket) -> DemoResult:
    """Insert two videos of the local site, follow their stages, and search them."""
    owner, demo_clips = _import_demo_systems().DEMO_USER_ID, _import_demo_clips()
    clip_ids = await demo_clips.add_demo_clips(client, owner, site)
    bar = bars.add_task("clips", total=100, note="inserted")

    def show_progress(percent: float, note: str) -> None:
        bars.update(bar, completed=percent, note=note)

    rows = await demo_clips.wait_for_clips(client, owner, clip_ids, show_progress)
    texts = [
        f"{row['title']}: {row['processing_error'] or row['summary'] or 'no transcript'}" for row in rows
    ]
    succeeded = all(row["processing_status"] == "done" for row in rows)
    lines = [*texts, *await demo_clips.search_demo_clips(client, owner)]
    return DemoResult(succeeded, f"\n  {'':<17} ".join(lines))


async def _describe_bookmarks(run: DemoRun, client: Client) -> list[str]:
    """Copy the files of the bookmarks to the folder of the demo, and return lines about each."""
    demo_bookmarks = _import_demo_bookmarks()
    rows = await demo_bookmarks.list_demo_bookmarks(client, _import_demo_systems().DEMO_USER_ID)
    files = await demo_bookmarks.copy_bookmark_files(client, rows, run.folder)
    lines: list[str] = []
    for row in rows:
        lines.append(f"  bookmark {row['id']:<8} {row['title']}: {row['description']} (text: {row['ocr']})")
        lines += [f"  {'':<17} {path}" for path in files.get(row["id"], [])]
    return lines


async def _restart_on_file_change(run: DemoRun) -> int:
    """Restart the processes of the demo when a Python file changes, and each process that exits."""
    package = Path(sample_tasks.__file__).parent.parent
    for changed_files in watch_python_files([package, Path.cwd()]):
        for process in run.processes:
            if changed_files or not process.is_running:
                reason = f"{Path(min(changed_files)).name} changed" if changed_files else "it exited"
                run.output.print_line(f"restarting the {process.name}: {reason}")
                await process.stop()
                await process.start()
        await asyncio.sleep(PROCESS_CHECK_INTERVAL_S)
    return 0
