"""`holdfast limit`: how many tasks may run at once, and how many may start a second."""

from __future__ import annotations

import re
from typing import Any

import click

from holdfast.cli import words
from holdfast.cli.naming import complete_limit, complete_queue, complete_type
from holdfast.cli.session import Session, destructive, json_option, pass_session
from holdfast.cli.who import record
from holdfast.engine import limits, operate
from holdfast.engine.connection import Connection
from holdfast.engine.limits import Limit
from holdfast.errors import InvalidError, NotFoundError

COLUMNS = ["name", "queue", "type", "per_key", "in_use", "rate", "state"]
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:/\s*(s|m|h|d))?")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@click.group()
def limit() -> None:
    """Limits on what runs at once and on what starts in a time."""


@limit.command("list")
@json_option
@pass_session
def list_limits(session: Session) -> None:
    """Limits, with what is in use of them."""
    found = session.ask(operate.list_limits)
    session.out.rows(found if session.out.json else [_row(each) for each in found], COLUMNS)


def _row(found: dict[str, Any]) -> dict[str, Any]:
    most = found["max_running"]
    full = most is not None and not found["per_key"] and found["running"] >= most
    asleep = found.get("asleep_until")
    return {
        **found,
        "in_use": f"{found['running']}/{most}" if most is not None else str(found["running"]),
        "rate": None if found["rate"] is None else f"{found['rate']:g}/s",
        "state": f"asleep, wakes {words.until(asleep)}" if asleep else "full" if full else "open",
    }


def rate_in(text: str) -> float:
    """`5/s`, `100/m`, `2`: starts a second."""
    match = _RATE.fullmatch(text.strip())
    if not match:
        raise InvalidError(f"{text!r} is not a rate.", fix="Write 5/s, 100/m or 1000/h.", field="rate")
    return float(match[1]) / _SECONDS[match[2] or "s"]


@limit.command("set")
@click.argument("name", shell_complete=complete_limit)
@click.option("--queue", "-q", shell_complete=complete_queue, help="Only tasks of this queue.")
@click.option("--type", "kind", metavar="TASK", shell_complete=complete_type, help="Only this task.")
@click.option("--per-key", is_flag=True, help="For each limit key by itself.")
@click.option("--running", type=click.IntRange(0), help="So many at once.")
@click.option("--rate", help="So many starts, as 5/s or 100/m.")
@click.option("--burst", type=click.FloatRange(1), help="With --rate: so many at once after a rest.")
@json_option
@pass_session
def set_limit(session: Session, /, name: str, **given: Any) -> None:
    """Make or change a limit. What runs now is counted, and work waits for a moment while it is."""
    put(
        session,
        Limit(
            name=name,
            queue=given["queue"],
            type=given["kind"],
            per_key=given["per_key"],
            max_running=given["running"],
            rate=None if given["rate"] is None else rate_in(given["rate"]),
            burst=given["burst"],
        ),
    )


def put(session: Session, wanted: Limit) -> None:
    async def work(connection: Connection) -> dict[str, Any]:
        await limits.put_limit(connection, wanted)
        await record(connection, "limit.set", wanted.name, running=wanted.max_running, rate=wanted.rate)
        return next(row for row in await operate.list_limits(connection) if row["name"] == wanted.name)

    found = session.ask(work)
    session.out.rows([found if session.out.json else _row(found)], COLUMNS)


@limit.command()
@click.argument("name", shell_complete=complete_limit)
@destructive
@pass_session
def rm(session: Session, name: str, yes: bool, dry_run: bool) -> None:
    """Take a limit away."""
    remove(session, name, yes=yes, dry_run=dry_run)


def remove(session: Session, name: str, *, yes: bool, dry_run: bool) -> None:
    async def work(connection: Connection) -> None:
        if name not in {row["name"] for row in await operate.list_limits(connection)}:
            raise NotFoundError(
                f"There is no limit {name!r}.", fix="See `holdfast limit list`.", field="name"
            )
        if session.confirm(f"Limit {name} goes: what it held back may start.", yes=yes, dry_run=dry_run):
            await limits.remove_limit(connection, name)
            await record(connection, "limit.remove", name)
            session.out.line(f"Limit {name} is gone.")

    session.ask(work)
