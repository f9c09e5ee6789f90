"""Follow jobs to their end: bars on a terminal, else a line for each change, or a JSON object."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import click
import msgspec
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from holdfast.cli import reasons, words
from holdfast.cli.output import Output
from holdfast.client import Client
from holdfast.errors import HoldfastError
from holdfast.model import Job

MOST_BARS = 40
HINT_SECONDS = 3.0


async def watch(out: Output, client: Client, job_id: UUID, *, within: timedelta | None = None) -> Job:
    """Show the job after each change; answers with how it was last seen."""
    seen = client.watch(job_id, within=within)
    async with hinting(client, job_id):
        if out.json:
            return await _as_objects(out, seen)
        if out.console.is_terminal:
            return await _as_bars(out, seen)
        return await _as_lines(out, seen)


@asynccontextmanager
async def hinting(client: Client, job_id: UUID) -> AsyncGenerator[None]:
    """While inside: tell on standard error why the job has not started, if it has not for a while."""

    async def hint() -> None:
        await asyncio.sleep(HINT_SECONDS)
        async with (await client.open()).connection() as connection:
            found = await reasons.why(connection, job_id)
        if all(row["status"] in {"ready", "scheduled"} for row in found):
            told = dict.fromkeys(row["why"] for row in found)
            click.echo(f"It has not started yet. {'. '.join(told)}.", err=True)

    hinting = asyncio.create_task(hint())
    try:
        yield
    finally:
        hinting.cancel()
        with contextlib.suppress(asyncio.CancelledError, HoldfastError):
            await hinting


def exit_code(job: Job) -> int:
    return 0 if job.status == "succeeded" else 1


def ending(out: Output, job: Job) -> int:
    """Tell how a job ended, what it gave, and answer with the exit code."""
    if out.json:
        return exit_code(job)
    if not job.ended:
        out.line(f"{words.state(job.status)}: it has not ended yet.")
    elif job.status == "succeeded":
        out.value("output", msgspec.json.encode(job.output, enc_hook=str).decode())
    else:
        told = f": {job.error.type}: {words.clean(job.error.message, 500)}" if job.error else ""
        out.line(f"{words.state(job.status)}{told}")
    return exit_code(job)


async def _as_objects(out: Output, seen: AsyncIterator[Job]) -> Job:
    last: Job | None = None
    async for last in seen:
        out.record(msgspec.to_builtins(last, enc_hook=str))
    return _known(last)


async def _as_lines(out: Output, seen: AsyncIterator[Job]) -> Job:
    last: Job | None = None
    said = ""
    async for last in seen:
        line = f"{words.state(last.status)} {_note(last)}".rstrip()
        if line != said:
            out.line(line)
            said = line
    return _known(last)


async def _as_bars(out: Output, seen: AsyncIterator[Job]) -> Job:
    last: Job | None = None
    bars: dict[UUID, TaskID] = {}
    columns = (
        TextColumn("{task.description:<20}"),
        BarColumn(bar_width=30),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=out.console) as shown:
        whole = shown.add_task("job", total=100, note="")
        async for last in seen:
            percent = 100.0 if last.status == "succeeded" else last.progress.percent or 0.0
            shown.update(whole, description=_label(last.type), completed=percent, note=_markup(last))
            for task in last.tasks[:MOST_BARS] if len(last.tasks) > 1 else ():
                if task.id not in bars:
                    bars[task.id] = shown.add_task(_label(f"  {task.name}"), total=100, note="")
                done = 100.0 if task.status == "succeeded" else task.progress.percent or 0.0
                shown.update(bars[task.id], completed=done, note=_markup(task))
    return _known(last)


def _known(last: Job | None) -> Job:
    assert last is not None  # noqa: S101  (watch yields at least once)
    return last


def _label(text: str) -> str:
    return escape(text if len(text) <= 20 else f"{text[:19]}…")


def _note(one: Any) -> str:
    """The progress of a job or a task, or its error."""
    if one.error is not None and one.status != "running":
        return words.clean(f"{one.error.type}: {one.error.message}", 100)
    progress = one.progress
    percent = None if one.status == "succeeded" else progress.percent
    return words.doing({"percent": percent, "phase": progress.phase, "message": progress.message})


def _markup(one: Any) -> str:
    colour = words.COLOURS.get(one.status, "default")
    note = "" if one.status == "succeeded" else escape(_note_without_percent(one))
    return f"[{colour}]{words.state(one.status)}[/] {note}"


def _note_without_percent(one: Any) -> str:
    if one.error is not None and one.status != "running":
        return _note(one)
    return words.doing({"phase": one.progress.phase, "message": one.progress.message})
