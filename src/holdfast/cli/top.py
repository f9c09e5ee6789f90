"""`holdfast top`: show queues, running jobs, errors and workers in the terminal, refreshed every second.

Each refresh runs a few bounded queries. If a refresh fails, the last snapshot stays on the screen with the
error, and the next refresh tries again. The keys are those of the dashboard where it has them: o overview,
j jobs, e errors, q queues, w workers. In the lists, the arrows select a row: p pauses or resumes the queue, c
cancels the job, enter opens it (top_actions.py). Space stops the refresh.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from holdfast.cli import top_actions
from holdfast.cli.errors import format_error_group
from holdfast.cli.keyboard import KeyboardInput
from holdfast.cli.parameters import DURATION
from holdfast.cli.rows import get_object_or_empty
from holdfast.cli.session import CliSession, json_option, pass_session
from holdfast.cli.top_actions import PendingAction
from holdfast.cli.top_snapshot import TopSnapshot, fetch_snapshot, sort_queues
from holdfast.client import Client
from holdfast.engine.connection import Connection
from holdfast.errors import HoldfastError
from holdfast.formatting import (
    STATE_COLOURS,
    format_age,
    format_duration,
    format_number,
    format_progress,
    format_progress_bar,
    format_size,
    format_state,
    format_task_count,
    sanitize_text,
    shorten_id,
)

VIEWS_BY_KEY = {"o": "overview", "j": "jobs", "e": "errors", "q": "queues", "w": "workers", "?": "help"}
SELECTION_STEPS = {"up": -1, "down": 1}
EXIT_KEYS = {"x", "escape", "end", "\x04"}
KEY_HELP = "o overview  j jobs  e errors  q queues  w workers  space freeze  ? help  x exit"
VIEW_KEY_HELP = {"queues": "↑↓ select  p pause or resume  ", "jobs": "↑↓ select  enter open  c cancel  "}
MIN_REFRESH_INTERVAL_S = 0.2
UNLIMITED_HEIGHT_LINES = 1000


@click.command("top")
@click.option(
    "--once",
    is_flag=True,
    help="Print the current state once and exit. Default: refresh the screen until you press x.",
)
@click.option(
    "--interval",
    type=DURATION,
    default="1s",
    show_default=True,
    help="Refresh the screen at this interval, such as 5s.",
)
@json_option
@pass_session
def top_command(session: CliSession, once: bool, interval: timedelta) -> None:
    """Show queues, running jobs, errors and workers in the terminal, refreshed every second.

    Without a terminal, with --once or with --json, print one snapshot and exit.
    """
    console = session.output.console
    if once or session.output.json or not console.is_terminal or console.is_dumb_terminal:
        _print_current_snapshot(session)
    else:
        session.run_async(_show_live_screen(session, max(MIN_REFRESH_INTERVAL_S, interval.total_seconds())))


def _print_current_snapshot(session: CliSession) -> None:
    snapshot = TopSnapshot()

    async def fetch() -> None:
        async with session.client() as client:
            await fetch_snapshot(snapshot, client)

    session.run_async(fetch())
    if not session.output.json:
        session.output.console.print(render_snapshot(snapshot, height=UNLIMITED_HEIGHT_LINES))
        return
    session.output.print_record(
        {
            "at": snapshot.at,
            **snapshot.totals,
            "queues": snapshot.queues,
            "errors": snapshot.errors,
            "workers": snapshot.workers,
            "running_jobs": snapshot.running,
            **({"error": snapshot.error} if snapshot.error else {}),
        }
    )


async def _show_live_screen(session: CliSession, interval_s: float) -> None:
    snapshot, console = TopSnapshot(), session.output.console
    async with session.client() as client, KeyboardInput() as keyboard:
        await _refresh_snapshot(snapshot, client)
        with Live(render_snapshot(snapshot), console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(render_snapshot(snapshot, console.height), refresh=True)
                key = await keyboard.next_key(interval_s)
                if key in EXIT_KEYS:
                    return
                await handle_key(snapshot, key, client)
                if not snapshot.paused:
                    await _refresh_snapshot(snapshot, client)


async def _refresh_snapshot(snapshot: TopSnapshot, client: Client) -> None:
    try:
        await fetch_snapshot(snapshot, client)
    except HoldfastError as error:
        snapshot.error = sanitize_text(error.message, 100)


async def handle_key(snapshot: TopSnapshot, key: str | None, client: Client) -> None:
    """Change the view, select a row, or act on the selected row."""
    if key is None:
        return
    pending, snapshot.pending, snapshot.message = snapshot.pending, None, None
    if pending is not None:
        if key == "y":
            snapshot.message = await _run_pending_action(client, pending)
    elif key in VIEWS_BY_KEY:
        snapshot.view, snapshot.selected, snapshot.opened_job = VIEWS_BY_KEY[key], 0, None
    elif key in SELECTION_STEPS:
        last = max(len(snapshot.selectable_rows) - 1, 0)
        snapshot.selected = max(0, min(snapshot.selected + SELECTION_STEPS[key], last))
    elif key == " ":
        snapshot.paused = not snapshot.paused
    elif (row := snapshot.selected_row) is not None:
        await _act_on_row(snapshot, key, row, client)


async def _act_on_row(snapshot: TopSnapshot, key: str, row: dict[str, Any], client: Client) -> None:
    if (snapshot.view, key) == ("queues", "p"):
        snapshot.pending = top_actions.build_queue_action(row)
    elif (snapshot.view, key) == ("jobs", "c"):
        snapshot.pending = top_actions.build_cancel_action(row)
    elif snapshot.view == "jobs" and key in {"\n", "\r"}:
        read_job = partial(top_actions.read_job_text, job=row)
        own_client = client.shard_for(row["id"])
        snapshot.opened_job = None if snapshot.opened_job else await _run_in_database(own_client, read_job)


async def _run_pending_action(client: Client, pending: PendingAction) -> str:
    """Run an action on the shard of its job, or on all shards. Without shards, run it on the database."""
    if not client.shard_numbers:
        return await _run_in_database(client, pending.run)
    if pending.job_id is not None:
        return await _run_in_database(client.shard_for(pending.job_id), pending.run)
    messages = [await _run_in_database(client.shard(number), pending.run) for number in client.shard_numbers]
    return " ".join(f"Shard {number}: {m}" for number, m in zip(client.shard_numbers, messages, strict=True))


async def _run_in_database(client: Client, run: Callable[[Connection], Awaitable[str]]) -> str:
    try:
        async with client.connection() as connection:
            return await run(connection)
    except HoldfastError as error:
        return sanitize_text(error.message, 100)


def render_snapshot(snapshot: TopSnapshot, height: int = 40) -> RenderableType:
    """Render the selected view of a snapshot for a terminal of `height` lines."""
    all_rows = max(5, height - 6)
    quarter = max(3, all_rows // 4 - 2)
    views: dict[str, list[RenderableType]] = {
        "overview": [
            _render_queues(snapshot, quarter),
            _render_jobs(snapshot, quarter),
            _render_errors(snapshot, quarter),
            _render_workers(snapshot, quarter),
        ],
        "jobs": [_render_jobs(snapshot, all_rows)],
        "errors": [_render_errors(snapshot, all_rows)],
        "queues": [_render_queues(snapshot, all_rows)],
        "workers": [_render_workers(snapshot, all_rows)],
        "help": [Text(KEY_HELP.replace("  ", "\n"))],
    }
    shown = views[snapshot.view]
    if snapshot.opened_job is not None:
        lines = snapshot.opened_job.splitlines()[:all_rows]
        shown = [Panel(Text("\n".join(lines)), title="Job", title_align="left", padding=(0, 1))]
    help_text = VIEW_KEY_HELP.get(snapshot.view, "") + KEY_HELP
    return Group(_render_header(snapshot), *shown, Text(help_text, style="dim"))


def _render_header(snapshot: TopSnapshot) -> RenderableType:
    totals = snapshot.totals
    unresponsive = f" ({totals['unresponsive']} unresponsive)" if totals["unresponsive"] else ""
    line = Text.assemble(
        ("holdfast ", "bold"),
        f" ready {format_task_count(totals, 'ready')}   running {format_task_count(totals, 'running')}   "
        f"scheduled {format_task_count(totals, 'scheduled')}   "
        f"failed attempts 1h {format_number(totals['failing'])}   workers {totals['workers']}{unresponsive}",
    )
    if snapshot.error:
        age = f", last refresh {format_age(snapshot.at)} ago" if snapshot.at else ""
        line.append(f"\n! {snapshot.error}{age}", style="bold red")
    if snapshot.paused:
        line.append("\nfrozen; press space to refresh again", style="yellow")
    if snapshot.pending is not None:
        line.append(f"\n{snapshot.pending.question}", style="bold yellow")
    if snapshot.message is not None:
        line.append(f"\n{snapshot.message}", style="bold")
    return line


def _render_table(
    title: str,
    columns: list[str],
    rows: list[list[str]],
    max_rows: int,
    right_aligned: set[str],
    selected: int | None = None,
) -> RenderableType:
    first = 0 if selected is None else max(0, selected - max_rows + 1)  # the selected row is always visible
    table = Table(box=None, header_style="bold dim", pad_edge=False, expand=True)
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right_aligned else "left"
        table.add_column(column, justify=justify, no_wrap=True, overflow="ellipsis")
    for number, row in enumerate(rows[first : first + max_rows], start=first):
        table.add_row(*row, style="reverse" if number == selected else None)
    hidden = f" ({len(rows) - max_rows} more)" if len(rows) > max_rows else ""
    content = table if rows else Text("-", style="dim")
    return Panel(content, title=f"{title}{hidden}", title_align="left", padding=(0, 1))


def _render_queues(snapshot: TopSnapshot, max_rows: int) -> RenderableType:
    queues = sort_queues(snapshot.queues)
    rows = [
        [
            escape(sanitize_text(queue["queue"], 40)),
            _format_queue_state(queue),
            format_task_count(queue, "ready"),
            format_task_count(queue, "running"),
            format_task_count(queue, "scheduled"),
            format_duration(queue["oldest_s"]) if queue["ready"] else "-",
            str(queue["workers"]),
        ]
        for queue in queues
    ]
    columns = ["queue", "state", "ready", "running", "scheduled", "oldest", "workers"]
    selected = min(snapshot.selected, len(rows) - 1) if snapshot.view == "queues" else None
    return _render_table("Queues", columns, rows, max_rows, set(columns[2:]), selected)


def _format_queue_state(queue: dict[str, Any]) -> str:
    if queue.get("paused_at"):
        return "[yellow]❚❚ paused[/]"
    return "[red]! no worker[/]" if queue["ready"] and not queue["workers"] else "[green]● active[/]"


def _render_jobs(snapshot: TopSnapshot, max_rows: int) -> RenderableType:
    rows = [
        [
            shorten_id(job["id"]),
            escape(sanitize_text(job["type"], 30)),
            escape(sanitize_text(job.get("queue") or "", 20)),
            f"{format_progress_bar(get_object_or_empty(job, 'progress').get('percent'))} "
            + escape(sanitize_text(format_progress(job.get("progress")), 50)),
            format_age(job.get("started_at")),
        ]
        for job in snapshot.running
    ]
    columns = ["job", "task", "queue", "progress", "running for"]
    selected = min(snapshot.selected, len(rows) - 1) if snapshot.view == "jobs" else None
    return _render_table("Running", columns, rows, max_rows, {"running for"}, selected)


def _render_errors(snapshot: TopSnapshot, max_rows: int) -> RenderableType:
    columns = ["attempts", "jobs", "last", "trend", "error", "tasks"]
    rows = [
        [escape(str(row[column])) for column in columns] for row in map(format_error_group, snapshot.errors)
    ]
    return _render_table("Errors, last hour", columns, rows, max_rows, {"attempts", "jobs", "last"})


def _render_workers(snapshot: TopSnapshot, max_rows: int) -> RenderableType:
    rows: list[list[str]] = []
    for worker in snapshot.workers:
        report = get_object_or_empty(worker, "report")
        lag, slots = report.get("loop_lag_ms"), report.get("slots")
        colour = STATE_COLOURS.get(worker["state"], "default")
        rows.append(
            [
                escape(sanitize_text(worker["name"], 40)),
                f"[{colour}]{format_state(worker['state'])}[/]",
                f"{worker['running']}/{slots}" if slots else str(worker["running"]),
                escape(sanitize_text(", ".join(worker["queues"]), 40)),
                "-" if lag is None else f"{lag:.0f} ms",
                format_size(report.get("rss")),
                f"{format_duration(worker['seen_s'])} ago",
            ]
        )
    columns = ["worker", "state", "slots", "queues", "lag", "memory", "heartbeat"]
    return _render_table("Workers", columns, rows, max_rows, {"slots", "lag", "memory", "heartbeat"})
