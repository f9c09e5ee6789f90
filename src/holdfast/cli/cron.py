"""`holdfast cron`: schedules, their next times, and runs by hand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

import click
import msgspec

from holdfast.cli.session import Session, destructive, json_option, pass_session
from holdfast.cli.values import SPAN, body_of
from holdfast.cli.who import record, somebody
from holdfast.engine import schedules
from holdfast.engine.connection import Connection
from holdfast.errors import ConflictError, NotFoundError
from holdfast.model import StoredSchedule

T = TypeVar("T")
COLUMNS = ("name", "when", "timezone", "does", "next_at", "last_at", "state")


@click.group()
def cron() -> None:
    """Schedules: work that is submitted at set times."""


def _shown(found: StoredSchedule) -> dict[str, Any]:
    when = found.cron or f"every {found.every_s:g}s"
    state = "paused" if found.paused_at else "failing" if found.last_error else "active"
    does = found.job.get("type") or ", ".join(task["type"] for task in found.job["tasks"])
    record = {name: value for name, value in msgspec.structs.asdict(found).items() if name != "did"}
    return {**record, "when": when, "does": does, "state": state}


@cron.command("list")
@click.option("--owner", help="Only those of this owner.")
@json_option
@pass_session
def list_schedules(session: Session, owner: str | None) -> None:
    """List the schedules, by name."""

    async def work() -> list[StoredSchedule]:
        async with session.client() as client:
            return await client.schedules.list(owner=owner)

    session.out.rows([_shown(found) for found in session.run(work())], COLUMNS)


@cron.command()
@click.argument("name")
@json_option
@pass_session
def show(session: Session, name: str) -> None:
    """Show one schedule: its times, its job, its last run."""
    session.out.record(_shown(session.ask(lambda connection: schedules.get_schedule(connection, name))))


@cron.command()
@click.argument("name")
@json_option
@pass_session
def run(session: Session, name: str) -> None:
    """Submit its job now, besides its times; also while it is paused."""
    submitted = _recorded(session, "run", name, schedules.run_schedule)
    session.out.value("job", submitted.id)


def _recorded(session: Session, verb: str, name: str, act: Callable[[Connection, str], Awaitable[T]]) -> T:
    """Do it, and write down who did."""

    async def work(connection: Connection) -> T:
        done = await act(connection, name)
        await record(connection, f"schedule.{verb}", name)
        return done

    return session.ask(work)


@cron.command()
@click.argument("name")
@pass_session
def pause(session: Session, name: str) -> None:
    """No more runs until it is resumed."""
    changed = _recorded(session, "pause", name, lambda c, name: schedules.pause_schedule(c, name, somebody()))
    session.out.line(f"Schedule {name} {'is paused' if changed else 'was paused already'}.")


@cron.command()
@click.argument("name")
@pass_session
def resume(session: Session, name: str) -> None:
    """Go on with the next time; what was missed meanwhile is not made up for."""
    changed = _recorded(session, "resume", name, schedules.resume_schedule)
    session.out.line(f"Schedule {name} {'goes on' if changed else 'was not paused'}.")


@cron.command()
@click.argument("name", required=False)
@click.option("--cron", "expression", help="Instead of a name: what this expression means.")
@click.option("--every", type=SPAN, help="Instead of a name: an interval, as 90s or 6h.")
@click.option("--timezone", default="UTC", show_default=True, help="With --cron: an IANA name.")
@click.option("--count", "-n", type=click.IntRange(1, 1000), default=10, show_default=True)
@json_option
@pass_session
def preview(
    session: Session,
    name: str | None,
    expression: str | None,
    every: timedelta | None,
    timezone: str,
    count: int,
) -> None:
    """Show the next times of a schedule, or of an expression that is not stored."""
    if (name is None) == (expression is None and every is None):
        raise click.UsageError("Give the name of a schedule, or --cron or --every.")
    if name is not None:
        known = name
        times = session.ask(lambda connection: schedules.preview_schedule(connection, known, count))
    else:
        every_s = None if every is None else every.total_seconds()
        times = session.ask(
            lambda connection: schedules.next_times(
                connection, cron=expression, every_s=every_s, timezone=timezone, count=count
            )
        )
    session.out.rows([{"at": time.isoformat()} for time in times], ["at"])


@cron.command()
@click.argument("name")
@click.argument("task")
@click.argument("args", nargs=-1)
@click.option("--cron", "expression", help='Minute, hour, day, month, weekday: "0 3 * * MON-FRI", or @daily.')
@click.option("--every", type=SPAN, help="Instead of --cron: an interval, as 90s or 6h.")
@click.option("--timezone", default="UTC", show_default=True, help="An IANA name, as Europe/Madrid.")
@click.option("--queue", help="The queue of the task.")
@click.option("--owner", help="Whose jobs they are.")
@click.option("--missed", type=click.Choice(["skip", "coalesce", "catch_up"]), default="coalesce",
              show_default=True, help="Runs that nobody was there for: none, one for all, each.")  # fmt: skip
@click.option("--unique", is_flag=True, help="Leave a run out while the one before has not ended.")
@click.option("--replace", is_flag=True, help="Change the schedule if there is one of that name.")
@json_option
@pass_session
def add(session: Session, /, name: str, task: str, args: tuple[str, ...], **said: Any) -> None:
    """Make a schedule for one task. ARGS are JSON, @file, or pairs: name=text count:=3."""
    job: dict[str, Any] = {"type": task, "args": body_of(args) if args else {}}
    if said["queue"]:
        job["queue"] = said["queue"]
    if said["unique"]:
        job["unique_key"] = f"schedule:{name}"
    body = {
        "name": name,
        "job": job,
        "cron": said["expression"],
        "every_s": said["every"].total_seconds() if said["every"] else None,
        **{option: said[option] for option in ("timezone", "owner", "missed")},
    }
    call = schedules.put_schedule if said["replace"] else schedules.create_schedule
    try:
        made = _recorded(session, "put", name, lambda connection, _: call(connection, body))
    except ConflictError as problem:
        raise ConflictError(problem.message, fix="Add --replace to change it.", field="name") from None
    session.out.record(_shown(made))


@cron.command()
@click.argument("name")
@destructive
@pass_session
def rm(session: Session, name: str, yes: bool, dry_run: bool) -> None:
    """Remove a schedule; its jobs stay."""
    found = session.ask(lambda connection: schedules.get_schedule(connection, name))
    code = f" The code of {found.source} brings it back when its worker starts." if found.source else ""
    if session.confirm(f"Schedule {name} goes; its jobs stay.{code}", yes=yes, dry_run=dry_run):
        if not _recorded(session, "delete", name, schedules.delete_schedule):
            raise NotFoundError(f"There is no schedule {name!r}.", field="name")
        session.out.line(f"Schedule {name} is gone.")
