"""`holdfast top`: show queues, running jobs, errors and workers in the terminal, refreshed every second.

Each refresh runs a few bounded queries. If a refresh fails, the last snapshot stays on the screen with the
error, and the next refresh tries again. The keys are those of the dashboard where it has them: o overview,
j jobs, e errors, q queues, w workers, p pause.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from holdfast.cli.errors import format_error_group
from holdfast.cli.keyboard import KeyboardInput
from holdfast.cli.parameters import DURATION
from holdfast.cli.rows import get_object_or_empty
from holdfast.cli.session import CliSession, json_option, pass_session
from holdfast.client import Client
from holdfast.engine import error_groups, search
from holdfast.engine import queues as engine_queues
from holdfast.engine import workers as engine_workers
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
    sanitize_text,
    shorten_id,
)

VIEWS_BY_KEY = {"o": "overview", "j": "jobs", "e": "errors", "q": "queues", "w": "workers", "?": "help"}
EXIT_KEYS = {"x", "escape", "end", "\x04"}
KEY_HELP = "o overview  j jobs  e errors  q queues  w workers  p pause  ? help  x exit"
MIN_REFRESH_INTERVAL_S = 0.2
SHOWN_ERROR_PERIOD = timedelta(hours=1)
SHOWN_WORKER_PERIOD_S = 600
UNLIMITED_HEIGHT_LINES = 1000


@dataclass
class TopSnapshot:
    """The data of the last refresh of `holdfast top`, and the view on the screen."""

    view: str = "overview"
    paused: bool = False
    error: str | None = None
    at: datetime | None = None
    queues: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    running: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    errors: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    workers: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    async def fetch_from_database(self, connection: Connection) -> None:
        """Read queues, workers, running jobs and errors from the database into this snapshot."""
        since = datetime.now(UTC) - SHOWN_ERROR_PERIOD
        self.queues = await engine_queues.list_task_queues(connection)
        self.workers = await engine_workers.list_workers(connection, within_s=SHOWN_WORKER_PERIOD_S)
        self.running = (await search.search_jobs(connection, "state:running", limit=100)).rows
        self.errors = await error_groups.list_error_groups(connection, since=since, limit=50)
        self.at, self.error = datetime.now(UTC), None

    @property
    def totals(self) -> dict[str, int]:
        live = [worker for worker in self.workers if worker["state"] in {"live", "draining"}]
        return {
            "ready": sum(queue["ready"] for queue in self.queues),
            "running": sum(queue["running"] for queue in self.queues),
            "scheduled": sum(queue["scheduled"] for queue in self.queues),
            "failing": sum(group["attempts"] for group in self.errors),
            "workers": len(live),
            "quiet": sum(worker["state"] == "quiet" for worker in self.workers),
        }


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
    session.run_with_connection(snapshot.fetch_from_database)
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
                _handle_key(snapshot, key)
                if not snapshot.paused:
                    await _refresh_snapshot(snapshot, client)


async def _refresh_snapshot(snapshot: TopSnapshot, client: Client) -> None:
    try:
        async with client.connection() as connection:
            await snapshot.fetch_from_database(connection)
    except HoldfastError as error:
        snapshot.error = sanitize_text(error.message, 100)


def _handle_key(snapshot: TopSnapshot, key: str | None) -> None:
    if key in VIEWS_BY_KEY:
        snapshot.view = VIEWS_BY_KEY[key]
    elif key == "p":
        snapshot.paused = not snapshot.paused


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
    return Group(_render_header(snapshot), *views[snapshot.view], Text(KEY_HELP, style="dim"))


def _render_header(snapshot: TopSnapshot) -> RenderableType:
    totals = snapshot.totals
    quiet = f" ({totals['quiet']} quiet)" if totals["quiet"] else ""
    line = Text.assemble(
        ("holdfast ", "bold"),
        f" ready {format_number(totals['ready'])}   running {format_number(totals['running'])}   "
        f"scheduled {format_number(totals['scheduled'])}   "
        f"failed attempts 1h {format_number(totals['failing'])}   workers {totals['workers']}{quiet}",
    )
    if snapshot.error:
        age = f", last refresh {format_age(snapshot.at)} ago" if snapshot.at else ""
        line.append(f"\n! {snapshot.error}{age}", style="bold red")
    if snapshot.paused:
        line.append("\npaused; press p to resume", style="yellow")
    return line


def _render_table(
    title: str, columns: list[str], rows: list[list[str]], max_rows: int, right_aligned: set[str]
) -> RenderableType:
    table = Table(box=None, header_style="bold dim", pad_edge=False, expand=True)
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right_aligned else "left"
        table.add_column(column, justify=justify, no_wrap=True, overflow="ellipsis")
    for row in rows[:max_rows]:
        table.add_row(*row)
    hidden = f" ({len(rows) - max_rows} more)" if len(rows) > max_rows else ""
    content = table if rows else Text("-", style="dim")
    return Panel(content, title=f"{title}{hidden}", title_align="left", padding=(0, 1))


def _render_queues(snapshot: TopSnapshot, max_rows: int) -> RenderableType:
    queues = sorted(snapshot.queues, key=lambda q: (-(q["ready"] + q["running"]), q["queue"]))
    rows = [
        [
            escape(sanitize_text(queue["queue"], 40)),
            _format_queue_state(queue),
            format_number(queue["ready"]),
            format_number(queue["running"]),
            format_number(queue["scheduled"]),
            format_duration(queue["oldest_s"]) if queue["ready"] else "-",
            str(queue["workers"]),
        ]
        for queue in queues
    ]
    columns = ["queue", "state", "ready", "running", "scheduled", "oldest", "workers"]
    return _render_table("Queues", columns, rows, max_rows, set(columns[2:]))


def _format_queue_state(queue: dict[str, Any]) -> str:
    if queue.get("paused_at"):
        return "[yellow]❚❚ paused[/]"
    return "[red]! no worker[/]" if queue["ready"] and not queue["workers"] else "[green]● open[/]"


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
    return _render_table("Running", columns, rows, max_rows, {"running for"})


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
