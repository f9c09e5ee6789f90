"""`holdfast queue pause|resume|limit|drain|scale`: how tasks of a queue are let through."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from holdfast.cli import limit as limits_noun
from holdfast.cli import words
from holdfast.cli.naming import complete_queue
from holdfast.cli.queue import queue
from holdfast.cli.session import Session, destructive, json_option, pass_session
from holdfast.cli.values import SPAN
from holdfast.cli.who import record, somebody
from holdfast.engine import insight, limits, operate
from holdfast.engine.connection import Connection
from holdfast.engine.limits import Limit
from holdfast.engine.messages import queues
from holdfast.errors import HoldfastError, NotFoundError, RefusedError


async def _is_for_tasks(connection: Connection, name: str) -> None:
    """A queue that nobody knows may be paused before its first task; one of messages cannot be."""
    if not await operate.task_queues(connection, name, most=1) and await queues.has_queue(connection, name):
        raise RefusedError(
            f"{name} is a queue of messages, and those cannot be paused.",
            fix="Stop its consumers instead: `holdfast workers drain`.",
        )


@queue.command()
@click.argument("name", shell_complete=complete_queue)
@click.option("--reason", "-r", help="Why; everybody who asks why is told.")
@click.option("--for", "span", type=SPAN, help="Resume by itself after so long.")
@json_option
@pass_session
def pause(session: Session, name: str, reason: str | None, span: timedelta | None) -> None:
    """Claim no more tasks of a queue; what runs goes on."""
    until = None if span is None else datetime.now(UTC) + span

    async def work(connection: Connection) -> dict[str, Any]:
        await _is_for_tasks(connection, name)
        await insight.pause_queue_until(connection, name, until, why=reason, by=somebody())
        await record(connection, "queue.pause", name, reason=reason, until=until and until.isoformat())
        return (await operate.task_queues(connection, name))[0]

    found = session.ask(work)
    if session.out.json:
        session.out.record(found)
    else:
        left = f"{words.number(found['ready'])} ready, {found['running']} still running"
        ends = f" for {words.span(span)}" if span else ""
        session.out.line(f"Queue {name} is paused{ends}: {left}.")


@queue.command()
@click.argument("name", shell_complete=complete_queue)
@json_option
@pass_session
def resume(session: Session, name: str) -> None:
    """Let tasks of a paused queue start again."""

    async def work(connection: Connection) -> bool:
        was = await limits.resume_queue(connection, name)
        if was:
            await record(connection, "queue.resume", name)
        return was

    was = session.ask(work)
    if session.out.json:
        session.out.record({"queue": name, "resumed": was})
    else:
        session.out.line(f"Queue {name} goes on." if was else f"Queue {name} was not paused.")


@queue.command()
@click.argument("name", shell_complete=complete_queue)
@click.option("--running", type=click.IntRange(0), help="So many tasks at once.")
@click.option("--rate", help="So many starts, as 5/s or 100/m.")
@click.option("--burst", type=click.FloatRange(1), help="With --rate: so many at once after a rest.")
@click.option("--none", is_flag=True, help="Take the limit away.")
@destructive
@json_option
@pass_session
def limit(session: Session, /, name: str, **given: Any) -> None:
    """Limit what runs of a queue, over all workers. Its name among the limits is queue:NAME."""
    rule = f"queue:{name}"
    if given["none"]:
        limits_noun.remove(session, rule, yes=given["yes"], dry_run=given["dry_run"])
        return
    rate = None if given["rate"] is None else limits_noun.rate_in(given["rate"])
    wanted = Limit(name=rule, queue=name, max_running=given["running"], rate=rate, burst=given["burst"])
    if given["dry_run"]:
        session.confirm(f"Queue {name} is limited.", yes=True, dry_run=True)
    else:
        limits_noun.put(session, wanted)


@queue.command()
@click.argument("name", shell_complete=complete_queue)
@click.option("--reason", "-r", default="draining", show_default=True, help="Why it is paused.")
@click.option("--within", type=SPAN, default="10m", show_default=True, help="Give up waiting after so long.")
@json_option
@pass_session
def drain(session: Session, name: str, reason: str, within: timedelta) -> None:
    """Pause a queue and wait until nothing of it runs any more. It stays paused: `holdfast queue resume`."""

    async def work(connection: Connection) -> int:
        await _is_for_tasks(connection, name)
        await limits.pause_queue(connection, name, why=reason, by=somebody())
        await record(connection, "queue.pause", name, reason=reason)
        return await _idle(session, connection, name, within)

    ready = session.ask(work)
    if session.out.json:
        session.out.record({"queue": name, "running": 0, "ready": ready})
    else:
        session.out.line(f"Nothing of queue {name} runs any more; {words.number(ready)} wait. It is paused.")


async def _idle(session: Session, connection: Connection, name: str, within: timedelta) -> int:
    """Waits until nothing runs; how many are ready then."""
    deadline, told = time.monotonic() + within.total_seconds(), -1
    while True:
        found = (await operate.task_queues(connection, name))[0]
        if not found["running"]:
            return int(found["ready"])
        if found["running"] != told:
            told = found["running"]
            session.out.line(f"{words.many(told, 'task')} still running.")
        if time.monotonic() >= deadline:
            raise HoldfastError(
                f"{words.many(told, 'task')} of queue {name} still run after {words.span(within)}.",
                fix="The queue stays paused; wait longer, or cancel them.",
            )
        await asyncio.sleep(0.2)


@queue.command()
@click.argument("name", shell_complete=complete_queue)
@click.option(
    "--per-worker", type=click.IntRange(1), default=8, show_default=True, help="Slots of one worker."
)
@json_option
@pass_session
def scale(session: Session, name: str, per_worker: int) -> None:
    """Print how many workers the queue could use now; for autoscalers. 0 when there is nothing to do."""

    async def work(connection: Connection) -> int:
        if not await operate.task_queues(connection, name, most=1) and await queues.has_queue(
            connection, name
        ):
            raise NotFoundError(f"{name} is a queue of messages; this is about tasks.", field="queue")
        return await operate.desired_workers(connection, name, per_worker=per_worker)

    session.out.value("workers", session.ask(work))
