"""`holdfast workers`: who works, on what, how well; and sending them home."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from holdfast.cli import words
from holdfast.cli.naming import complete_worker
from holdfast.cli.output import Output
from holdfast.cli.session import Session, destructive, json_option, pass_session
from holdfast.cli.values import SPAN
from holdfast.cli.who import record
from holdfast.engine import leases, operate
from holdfast.engine.connection import Connection
from holdfast.errors import ConflictError, NotFoundError

COLUMNS = ["name", "state", "running", "slots", "queues", "version", "lag", "memory", "beat"]


@click.group()
def workers() -> None:
    """Workers: who they are, what they run, and sending them home."""


@workers.command("list")
@click.option("--within", type=SPAN, default="1h", show_default=True, help="Those seen in this time.")
@json_option
@pass_session
def list_workers(session: Session, within: timedelta) -> None:
    """Workers, idle ones too, with their load."""
    found = session.ask(lambda c: operate.list_workers(c, within_s=within.total_seconds()))
    session.out.rows([row(session.out, each) for each in found], COLUMNS)


def row(out: Output, found: dict[str, Any]) -> dict[str, Any]:
    if out.json:
        return found
    about = words.part(found, "about")
    lag = about.get("loop_lag_ms")
    return {
        "name": found["name"],
        "state": words.state(found["state"]),
        "running": found["running"],
        "slots": about.get("slots"),
        "queues": ", ".join(found["queues"]),
        "version": about.get("version"),
        "lag": None if lag is None else f"{lag:.0f} ms",
        "memory": words.size(about.get("rss")),
        "beat": f"{words.span(found['seen_s'])} ago",
    }


@workers.command()
@click.argument("name", shell_complete=complete_worker)
@json_option
@pass_session
def show(session: Session, name: str) -> None:
    """One worker, and what it runs now."""

    async def work(connection: Connection) -> dict[str, Any]:
        found = await named(connection, name)
        return {**found, "tasks": await operate.worker_tasks(connection, found["name"])}

    found = session.ask(work)
    if session.out.json:
        session.out.record(found)
        return
    tasks = found.pop("tasks")
    session.out.record({**row(session.out, found), "types": ", ".join(found.get("types") or ["all"])})
    now = [
        {
            "job": task["job"],
            "task": task["name"],
            "attempt": task["attempt"],
            "runs": words.since(task["started_at"]),
            "deadline": words.until(task["deadline"]),
            "progress": words.doing(task),
        }
        for task in tasks
    ]
    session.out.rows(now, ["job", "task", "attempt", "runs", "deadline", "progress"])


async def named(connection: Connection, name: str) -> dict[str, Any]:
    """The worker of that name, or the only one whose name begins like this."""
    found = await operate.list_workers(connection, within_s=35 * 86400)
    fits = [each for each in found if each["name"] == name] or [
        each for each in found if each["name"].startswith(name)
    ]
    if not fits:
        raise NotFoundError(
            f"There is no worker {name!r}.", fix="See `holdfast workers list`.", field="worker"
        )
    if len(fits) > 1:
        shown = ", ".join(each["name"] for each in fits[:5])
        raise ConflictError(f"More than one worker begins with {name}: {shown}.", fix="Give more of it.")
    return fits[0]


@workers.command()
@click.argument("name", shell_complete=complete_worker)
@destructive
@json_option
@pass_session
def drain(session: Session, name: str, yes: bool, dry_run: bool) -> None:
    """Let a worker finish what it runs, claim no more, and end."""
    _command(session, name, "drain", yes=yes, dry_run=dry_run)


@workers.command()
@click.argument("name", shell_complete=complete_worker)
@destructive
@json_option
@pass_session
def stop(session: Session, name: str, yes: bool, dry_run: bool) -> None:
    """Stop a worker as TERM does: what does not finish within its grace is given back."""
    _command(session, name, "stop", yes=yes, dry_run=dry_run)


def _command(session: Session, name: str, command: leases.Command, *, yes: bool, dry_run: bool) -> None:
    async def work(connection: Connection) -> None:
        found = await named(connection, name)
        what = "ends after what it runs" if command == "drain" else "stops"
        consequence = f"Worker {found['name']} {what} ({words.many(found['running'], 'task')} now)."
        if not session.confirm(consequence, yes=yes, dry_run=dry_run):
            return
        if found["state"] not in {"live", "quiet", "draining"}:
            raise ConflictError(f"Worker {found['name']} is {found['state']}: nobody is there to hear it.")
        await leases.command_worker(connection, found["name"], command)
        await record(connection, f"worker.{command}", found["name"])
        session.out.record({"worker": found["name"], "command": command})

    session.ask(work)
