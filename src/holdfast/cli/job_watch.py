"""Follow a job until it ends: progress bars on a terminal, one line or JSON object per change elsewhere."""

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

from holdfast.cli.explain import explain_job
from holdfast.cli.output import CliOutput
from holdfast.client import Client
from holdfast.errors import HoldfastError
from holdfast.formatting import STATE_COLOURS, format_progress, format_state, sanitize_text, truncate_text
from holdfast.model import Job

MAX_TASK_PROGRESS_BARS = 40
NOT_STARTED_HINT_DELAY_S = 3.0
MAX_BAR_LABEL_CHARS = 20
MAX_BAR_NOTE_CHARS = 100
MAX_SHOWN_ERROR_CHARS = 500
UNLIMITED_JOB_WAIT = timedelta(days=36_500)


async def watch_job(
    output: CliOutput, client: Client, job_id: UUID, *, max_wait: timedelta | None = None
) -> Job:
    """Print a job after each change until it ends or `max_wait` has passed. Return the job."""
    changes = client.watch(job_id, within=max_wait)
    async with hint_if_not_started(client, job_id):
        if output.json:
            return await _print_json_changes(output, changes)
        if output.console.is_terminal:
            return await _show_progress_bars(output, changes)
        return await _print_line_changes(output, changes)


async def wait_for_job(client: Client, job_id: UUID, max_wait: timedelta | None = None) -> Job:
    """Wait until the job ends and return it, without showing progress."""
    async with hint_if_not_started(client, job_id):
        ended = [
            job async for job in client.watch(job_id, within=max_wait or UNLIMITED_JOB_WAIT) if job.ended
        ]
    if not ended:
        raise HoldfastError(
            f"Job {job_id} has not ended after {max_wait}.",
            fix=f"The job is still running; see `holdfast job watch {job_id}`.",
        )
    return ended[-1]


@asynccontextmanager
async def hint_if_not_started(client: Client, job_id: UUID) -> AsyncGenerator[None]:
    """Print on standard error why a job has not started, if it does not start within a few seconds.

    The check runs as long as the `async with` block."""

    async def print_hint() -> None:
        await asyncio.sleep(NOT_STARTED_HINT_DELAY_S)
        async with client.connection() as connection:
            reasons = await explain_job(connection, job_id)
        if all(reason["status"] in {"ready", "scheduled"} for reason in reasons):
            sentences = dict.fromkeys(reason["why"] for reason in reasons)
            click.echo(f"The job has not started yet. {' '.join(sentences)}", err=True)

    hint = asyncio.create_task(print_hint())
    try:
        yield
    finally:
        hint.cancel()
        with contextlib.suppress(asyncio.CancelledError, HoldfastError):
            await hint


def get_job_exit_code(job: Job) -> int:
    """Return 0 if the job succeeded, else 1."""
    return 0 if job.status == "succeeded" else 1


def print_job_outcome(output: CliOutput, job: Job) -> int:
    """Print the output or the error of an ended job, and return the exit code."""
    if output.json:
        return get_job_exit_code(job)
    if not job.ended:
        output.print_line(f"{format_state(job.status)}: the job has not ended yet.")
    elif job.status == "succeeded":
        output.print_value("output", msgspec.json.encode(job.output, enc_hook=str).decode())
    else:
        error = (
            f": {job.error.type}: {sanitize_text(job.error.message, MAX_SHOWN_ERROR_CHARS)}"
            if job.error
            else ""
        )
        output.print_line(f"{format_state(job.status)}{error}")
    return get_job_exit_code(job)


async def _print_json_changes(output: CliOutput, changes: AsyncIterator[Job]) -> Job:
    last: Job | None = None
    async for last in changes:
        output.print_record(msgspec.to_builtins(last, enc_hook=str))
    return _require_last_job(last)


async def _print_line_changes(output: CliOutput, changes: AsyncIterator[Job]) -> Job:
    last: Job | None = None
    last_line = ""
    async for last in changes:
        line = f"{format_state(last.status)} {_format_progress_note(last)}".rstrip()
        if line != last_line:
            output.print_line(line)
            last_line = line
    return _require_last_job(last)


async def _show_progress_bars(output: CliOutput, changes: AsyncIterator[Job]) -> Job:
    """Show a progress bar for the job and, if it has several tasks, one for each task."""
    last: Job | None = None
    task_bars: dict[UUID, TaskID] = {}
    columns = (
        TextColumn("{task.description:<20}"),
        BarColumn(bar_width=30),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=output.console) as bars:
        job_bar = bars.add_task("job", total=100, note="")
        async for last in changes:
            percent = 100.0 if last.status == "succeeded" else last.progress.percent or 0.0
            label = _format_bar_label(last.type)
            bars.update(job_bar, description=label, completed=percent, note=_format_bar_note(last))
            for task in last.tasks[:MAX_TASK_PROGRESS_BARS] if len(last.tasks) > 1 else ():
                if task.id not in task_bars:
                    task_bars[task.id] = bars.add_task(
                        _format_bar_label(f"  {task.name}"), total=100, note=""
                    )
                percent = 100.0 if task.status == "succeeded" else task.progress.percent or 0.0
                bars.update(task_bars[task.id], completed=percent, note=_format_bar_note(task))
    return _require_last_job(last)


def _require_last_job(last: Job | None) -> Job:
    assert last is not None  # noqa: S101  (watch yields at least once)
    return last


def _format_bar_label(text: str) -> str:
    return escape(truncate_text(text, MAX_BAR_LABEL_CHARS))


def _format_progress_note(item: Any, *, with_percent: bool = True) -> str:
    """Format the progress of a job or task as text, or its error if it has one."""
    if item.error is not None and item.status != "running":
        return sanitize_text(f"{item.error.type}: {item.error.message}", MAX_BAR_NOTE_CHARS)
    progress = item.progress
    percent = progress.percent if with_percent and item.status != "succeeded" else None
    return format_progress({"percent": percent, "phase": progress.phase, "message": progress.message})


def _format_bar_note(item: Any) -> str:
    """Format the state and message of a job or task for display beside its progress bar."""
    colour = STATE_COLOURS.get(item.status, "default")
    note = "" if item.status == "succeeded" else escape(_format_progress_note(item, with_percent=False))
    return f"[{colour}]{format_state(item.status)}[/] {note}"
