"""`holdfast top`: queues, what runs, errors and workers in a terminal, fresh every second.

The database is asked once per refresh with bounded questions. A refresh that fails leaves the last picture
and says so; it comes back by itself. Keys are those of the dashboard where it has them: o overview, j jobs,
e errors, q queues, w workers, p pause.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from holdfast.cli import words
from holdfast.cli.errors import row as error_row
from holdfast.cli.keys import Keys
from holdfast.cli.session import Session, json_option, pass_session
from holdfast.cli.values import SPAN
from holdfast.engine import operate, search
from holdfast.engine.connection import Connection
from holdfast.errors import HoldfastError

VIEWS = {"o": "overview", "j": "jobs", "e": "errors", "q": "queues", "w": "workers"}
HELP = "o overview  j jobs  e errors  q queues  w workers  p pause  ? help  x exit"


@dataclass
class Picture:
    """What was seen last, and how it is looked at."""

    view: str = "overview"
    paused: bool = False
    trouble: str | None = None
    at: datetime | None = None
    queues: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    running: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    errors: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    workers: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    async def look(self, connection: Connection) -> None:
        since = datetime.now(UTC) - timedelta(hours=1)
        self.queues = await operate.task_queues(connection)
        self.workers = await operate.list_workers(connection, within_s=600)
        self.running = (await search.search_jobs(connection, "state:running", limit=100)).rows
        self.errors = await search.error_groups(connection, since=since, limit=50)
        self.at, self.trouble = datetime.now(UTC), None

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


@click.command()
@click.option("--once", is_flag=True, help="Print one picture and end.")
@click.option("--every", type=SPAN, default="1s", show_default=True, help="How often to look.")
@json_option
@pass_session
def top(session: Session, once: bool, every: timedelta) -> None:
    """Watch queues, running jobs, errors and workers in the terminal."""
    console = session.out.console
    if once or session.out.json or not console.is_terminal or console.is_dumb_terminal:
        _print(session)
    else:
        session.run(_live(session, max(0.2, every.total_seconds())))


def _print(session: Session) -> None:
    picture = Picture()
    session.ask(picture.look)
    if session.out.json:
        lists = {name: getattr(picture, name) for name in ("queues", "running", "errors", "workers")}
        session.out.record({"at": picture.at, **picture.totals, **lists, "running": picture.totals["running"],
                            "running_jobs": picture.running})  # fmt: skip
    else:
        session.out.console.print(draw(picture, height=1000))


async def _live(session: Session, every: float) -> None:
    picture = Picture()
    async with session.client() as client, Keys() as keys:
        await _refresh(picture, client)
        with Live(draw(picture), console=session.out.console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(draw(picture, session.out.console.height), refresh=True)
                if _pressed(picture, await keys.next(every)) == "exit":
                    return
                if not picture.paused:
                    await _refresh(picture, client)


async def _refresh(picture: Picture, client: Any) -> None:
    try:
        async with (await client.open()).connection() as connection:
            await picture.look(connection)
    except HoldfastError as problem:
        picture.trouble = words.clean(problem.message, 100)


def _pressed(picture: Picture, key: str | None) -> str | None:
    if key in VIEWS:
        picture.view = VIEWS[key]
    elif key == "p":
        picture.paused = not picture.paused
    elif key in {"x", "escape", "end", "\x04"}:
        return "exit"
    elif key == "?":
        picture.view = "help"
    return None


def draw(picture: Picture, height: int = 40) -> RenderableType:
    """The picture for a terminal of that many lines."""
    room = max(5, height - 6)
    part = max(3, room // 4 - 2)
    views: dict[str, list[RenderableType]] = {
        "overview": [
            _queues(picture, part),
            _running(picture, part),
            _errors(picture, part),
            _workers(picture, part),
        ],
        "jobs": [_running(picture, room)],
        "errors": [_errors(picture, room)],
        "queues": [_queues(picture, room)],
        "workers": [_workers(picture, room)],
        "help": [Text(HELP.replace("  ", "\n"))],
    }
    return Group(_head(picture), *views[picture.view], Text(HELP, style="dim"))


def _head(picture: Picture) -> RenderableType:
    t = picture.totals
    quiet = f" ({t['quiet']} quiet)" if t["quiet"] else ""
    line = Text.assemble(
        ("holdfast ", "bold"),
        f" ready {words.number(t['ready'])}   running {words.number(t['running'])}   "
        f"scheduled {words.number(t['scheduled'])}   failed attempts 1h {words.number(t['failing'])}   "
        f"workers {t['workers']}{quiet}",
    )
    if picture.trouble:
        seen = f", last seen {words.since(picture.at)} ago" if picture.at else ""
        line.append(f"\n! {picture.trouble}{seen}", style="bold red")
    if picture.paused:
        line.append("\npaused; p goes on", style="yellow")
    return line


def _table(
    title: str, columns: list[str], rows: list[list[str]], most: int, right: set[str]
) -> RenderableType:
    table = Table(box=None, header_style="bold dim", pad_edge=False, expand=True)
    for column in columns:
        table.add_column(
            column, justify="right" if column in right else "left", no_wrap=True, overflow="ellipsis"
        )
    for row in rows[:most]:
        table.add_row(*row)
    left = f" ({len(rows) - most} more)" if len(rows) > most else ""
    return Panel(
        table if rows else Text("-", style="dim"), title=f"{title}{left}", title_align="left", padding=(0, 1)
    )


def _queues(picture: Picture, most: int) -> RenderableType:
    order = sorted(picture.queues, key=lambda q: (-(q["ready"] + q["running"]), q["queue"]))
    rows = [
        [
            escape(words.clean(q["queue"], 40)),
            "[yellow]❚❚ paused[/]" if q.get("paused_at") else _served(q),
            words.number(q["ready"]),
            words.number(q["running"]),
            words.number(q["scheduled"]),
            words.span(q["oldest_s"]) if q["ready"] else "-",
            str(q["workers"]),
        ]
        for q in order
    ]
    columns = ["queue", "state", "ready", "running", "later", "oldest", "workers"]
    return _table("Queues", columns, rows, most, {"ready", "running", "later", "oldest", "workers"})


def _served(queue: dict[str, Any]) -> str:
    return "[red]! no worker[/]" if queue["ready"] and not queue["workers"] else "[green]● open[/]"


def _running(picture: Picture, most: int) -> RenderableType:
    rows = [
        [
            words.short(job["id"]),
            escape(words.clean(job["type"], 30)),
            escape(words.clean(job.get("queue") or "", 20)),
            f"{words.bar(words.part(job, 'progress').get('percent'))} "
            + escape(words.clean(words.doing(job.get("progress")), 50)),
            words.since(job.get("started_at")),
        ]
        for job in picture.running
    ]
    return _table("Running", ["job", "task", "queue", "progress", "for"], rows, most, {"for"})


def _errors(picture: Picture, most: int) -> RenderableType:
    rows = [
        [escape(str(row[name])) for name in ("attempts", "jobs", "last", "trend", "error", "tasks")]
        for row in map(error_row, picture.errors)
    ]
    columns = ["attempts", "jobs", "last", "trend", "error", "tasks"]
    return _table("Errors, last hour", columns, rows, most, {"attempts", "jobs", "last"})


def _workers(picture: Picture, most: int) -> RenderableType:
    rows: list[list[str]] = []
    for worker in picture.workers:
        about = words.part(worker, "about")
        lag, slots = about.get("loop_lag_ms"), about.get("slots")
        colour = words.COLOURS.get(worker["state"], "default")
        rows.append([
            escape(words.clean(worker["name"], 40)),
            f"[{colour}]{words.state(worker['state'])}[/]",
            f"{worker['running']}/{slots}" if slots else str(worker["running"]),
            escape(words.clean(", ".join(worker["queues"]), 40)),
            "-" if lag is None else f"{lag:.0f} ms",
            words.size(about.get("rss")),
            f"{words.span(worker['seen_s'])} ago",
        ])  # fmt: skip
    columns = ["worker", "state", "slots", "queues", "lag", "memory", "beat"]
    return _table("Workers", columns, rows, most, {"slots", "lag", "memory", "beat"})
