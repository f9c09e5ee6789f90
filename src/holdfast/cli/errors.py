"""`holdfast errors`: causes, not rows. What fails, how often, since when; and repairing it all at once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from holdfast import search as grammar
from holdfast.cli import bulk, words
from holdfast.cli.output import Output
from holdfast.cli.session import Session, json_option, pass_session
from holdfast.cli.values import SPAN
from holdfast.cli.who import record, somebody
from holdfast.engine import search
from holdfast.engine.connection import Connection
from holdfast.errors import ConflictError, NotFoundError

COLUMNS = ["cause", "attempts", "jobs", "first", "last", "trend", "error", "tasks"]
TICKS = "▁▂▃▄▅▆▇█"


def _joined(_: click.Context, __: click.Parameter, words_given: tuple[str, ...]) -> str:
    """A cause has spaces in it, and nobody should have to quote it."""
    return " ".join(words_given)


@click.group()
def errors() -> None:
    """Errors by their cause: look at them, retry all that failed by one, ignore known ones."""


@errors.command("list")
@click.option("--since", type=SPAN, default="24h", show_default=True, help="Seen in this time.")
@click.option("--ignored", is_flag=True, help="Also those that are ignored.")
@click.option("--limit", "-n", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most.")
@json_option
@pass_session
def list_errors(session: Session, since: timedelta, ignored: bool, limit: int) -> None:
    """Causes of failed attempts, the one seen last first."""

    async def work(connection: Connection) -> list[dict[str, Any]]:
        start = datetime.now(UTC) - since
        return await search.error_groups(connection, since=start, ignored=ignored, limit=limit)

    found = session.ask(work)
    session.out.rows(found if session.out.json else [row(each) for each in found], COLUMNS)


def row(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "cause": words.clean(found["cause"], 60),
        "attempts": words.number(found["attempts"])
        if found["exact"]
        else f"> {words.number(found['attempts'])}",
        "jobs": found["jobs"] if found["jobs_exact"] else f"> {found['jobs']}",
        "first": words.since(found["first_at"]),
        "last": words.since(found["last_at"]),
        "trend": trend(words.several(found, "trend")),
        "error": words.clean(f"{found['type']}: {found['message']}", 60),
        "tasks": ", ".join(words.several(found, "tasks")),
    }


def trend(counts: list[int]) -> str:
    """A line of little bars, the highest of them full."""
    most = max(counts, default=0)
    return "".join(TICKS[round(n / most * (len(TICKS) - 1))] if n else " " for n in counts) if most else ""


async def named(connection: Connection, word: str, *, samples: int = 1) -> dict[str, Any]:
    """The cause, or the only one that begins like this."""
    month = datetime.now(UTC) - timedelta(days=30)
    found = await search.error_group(connection, word, since=month, limit=samples)
    if found is not None:
        return found
    groups = await search.error_groups(connection, since=month, ignored=True, limit=1000)
    fits = [each["cause"] for each in groups if each["cause"].startswith(word)]
    if len(fits) > 1:
        raise ConflictError(f"More than one cause begins with {word!r}.", fix="Give more of it.")
    if not fits:
        raise NotFoundError(f"There is no cause {word!r}.", fix="See `holdfast errors list`.", field="cause")
    again = await search.error_group(connection, fits[0], since=month, limit=samples)
    assert again is not None  # noqa: S101  (it was in the list a moment ago)
    return again


@errors.command()
@click.argument("cause", nargs=-1, required=True, callback=_joined)
@click.option(
    "--samples", "-n", type=click.IntRange(1, 100), default=3, show_default=True, help="Attempts to show."
)
@json_option
@pass_session
def show(session: Session, cause: str, samples: int) -> None:
    """One cause, with the newest attempts that failed by it and their tracebacks."""
    found = session.ask(lambda connection: named(connection, cause, samples=samples))
    if session.out.json:
        session.out.record(found)
    else:
        _describe(session.out, found)


def _describe(out: Output, found: dict[str, Any]) -> None:
    told = {name: value for name, value in found.items() if name != "samples" and value is not None}
    told |= {name: f"{words.since(found[name])} ago" for name in ("first_at", "last_at")}
    out.record(told)
    for sample in words.several(found, "samples"):
        out.line(
            f"\njob {sample['job']} {sample['name']} attempt {sample['attempt']}, "
            f"{words.since(sample['ended_at'])} ago on {sample['worker'] or '?'}"
        )
        for line in str(sample["traceback"] or "").splitlines():
            out.line(f"  {''.join(c if c.isprintable() else ' ' for c in line)}")


@errors.command()
@click.argument("cause", nargs=-1, required=True, callback=_joined)
@bulk.options
@json_option
@pass_session
def retry(session: Session, /, cause: str, **given: Any) -> int:
    """Run all jobs again that failed by one cause: first a few, then the rest if those went well."""

    async def work(connection: Connection) -> int:
        found = await named(connection, cause)
        query = grammar.parse(f"state:failed cause:{quoted(found['cause'])}")
        return await bulk.start(session, connection, "retry", query, given)

    return session.ask(work)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@errors.command()
@click.argument("cause", nargs=-1, required=True, callback=_joined)
@click.option("--for", "span", type=SPAN, default="7d", show_default=True, help="How long.")
@click.option("--no-longer", is_flag=True, help="Take it back.")
@click.option("--reason", "-r", help="Why.")
@click.option("--link", help="Where it is being mended.")
@json_option
@pass_session
def ignore(
    session: Session, cause: str, span: timedelta, no_longer: bool, reason: str | None, link: str | None
) -> None:
    """Leave a cause out of the lists for a while."""

    async def work(connection: Connection) -> dict[str, Any]:
        found = await named(connection, cause)
        until = None if no_longer else datetime.now(UTC) + span
        await search.ignore_cause(
            connection, found["cause"], until=until, by=somebody(), why=reason, link=link
        )
        await record(connection, "error.ignore", found["cause"], until=str(until), reason=reason)
        return {"cause": found["cause"], "ignored_until": until}

    session.out.record(session.ask(work))
