"""`holdfast job`: find jobs, look at one, follow it, and ask why it does not run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import click
import msgspec

from holdfast.cli import reasons, watching, words
from holdfast.cli.naming import complete_job, job_named
from holdfast.cli.output import Output
from holdfast.cli.session import Session, json_option, pass_session
from holdfast.cli.values import SPAN
from holdfast.engine import insight, jobs
from holdfast.engine.connection import Connection
from holdfast.engine.logs import read_logs
from holdfast.errors import NotFoundError

FOLLOW_SECONDS = 0.3
MOST_TASKS = 200  # that are described one by one


@click.group()
def job() -> None:
    """Jobs: find them, look at them, follow them, run them again."""


def job_argument(command: Any) -> Any:
    return click.argument("job_id", metavar="JOB", shell_complete=complete_job)(command)


@job.command()
@job_argument
@json_option
@pass_session
def show(session: Session, job_id: str) -> None:
    """One job with its tasks, its failed attempts and what it gave."""

    async def work(connection: Connection) -> dict[str, Any]:
        found = await fetched(connection, await job_named(connection, job_id))
        stumbled = [task for task in found["tasks"] if _stumbled(task)]
        for task in stumbled[:MOST_TASKS]:
            tried = await insight.task_attempts(connection, UUID(task["id"]))
            task["attempts"] = [msgspec.structs.asdict(each) for each in tried]
        return found

    found = session.ask(work)
    if session.out.json:
        session.out.record(found)
    else:
        _describe(session.out, found)


def _stumbled(task: dict[str, Any]) -> bool:
    """Whether it has attempts to tell of: those that did not succeed are kept."""
    return task["attempt"] > 1 or task["failures"] > 0 or task["status"] in {"failed", "cancelled"}


async def fetched(connection: Connection, job_id: UUID) -> dict[str, Any]:
    found = await jobs.get_job(connection, job_id)
    if found is None:
        raise NotFoundError(
            f"There is no job {job_id}.",
            fix="It may not be committed yet, or be forgotten already.",
            field="id",
        )
    return found


def _describe(out: Output, found: dict[str, Any]) -> None:
    out.line(
        f"{found['type']} {found['id']}  {words.state(found['status'])}  {words.doing(found['progress'])}"
    )
    told = {
        "owner": found.get("owner"),
        "labels": found.get("labels"),
        "params": found.get("params"),
        "created": f"{words.since(found['created_at'])} ago",
        "ran": words.took(found.get("started_at"), found.get("finished_at"))
        if found.get("started_at")
        else None,
        "output": found.get("output"),
    }
    for name, value in told.items():
        if value is not None:
            out.line(f"  {name:<8} {words.clean(_text(value), 2000)}")
    for task in found["tasks"][:MOST_TASKS]:
        ran = words.took(task.get("started_at"), task.get("finished_at"))
        out.line(
            f"  {words.state(task['status']):<12} {task['name']:<20} queue {task['queue']}  "
            f"attempt {task['attempt']}  {ran}  {words.doing(task['progress'])}"
        )
        for tried in words.several(task, "attempts"):
            _describe_attempt(out, tried)
    if len(found["tasks"]) > MOST_TASKS:
        out.line(f"  and {words.many(len(found['tasks']) - MOST_TASKS, 'task')} more; --json has them all")


def _describe_attempt(out: Output, tried: dict[str, Any]) -> None:
    ran = words.took(tried["started_at"], tried["ended_at"])
    out.line(
        f"      attempt {tried['attempt']} {tried['outcome']} after {ran} on {tried['worker'] or '?'}: "
        f"{tried['error_type'] or ''} {words.clean(tried['message'] or '', 500)}"
    )
    for line in str(tried["traceback"] or "").splitlines():
        out.line(f"        {''.join(c if c.isprintable() else ' ' for c in line)}")


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()


@job.command()
@job_argument
@click.option("--within", type=SPAN, help="So long at most.")
@json_option
@pass_session
def watch(session: Session, job_id: str, within: timedelta | None) -> int:
    """Follow a job to its end; exit 1 unless it succeeds."""

    async def work() -> int:
        async with session.client() as client:
            async with (await client.open()).connection() as connection:
                found = await job_named(connection, job_id)
            return watching.ending(
                session.out, await watching.watch(session.out, client, found, within=within)
            )

    return session.run(work())


@job.command()
@job_argument
@json_option
@pass_session
def why(session: Session, job_id: str) -> None:
    """Why is it not running? One line for each task that has not ended and each reason."""

    async def work(connection: Connection) -> list[dict[str, Any]]:
        return await reasons.why(connection, await job_named(connection, job_id))

    found = session.ask(work)
    if not session.out.json:
        found = [{**row, "status": words.state(row["status"])} for row in found]
    session.out.rows(found, ["task", "status", "why"])


@job.command()
@job_argument
@click.option("--task", "task_name", metavar="NAME", help="Only this task's lines.")
@click.option("--level", type=click.Choice(["debug", "info", "warning", "error"]), default="debug",
              show_default=True, help="These and worse.")  # fmt: skip
@click.option(
    "--limit", "-n", type=click.IntRange(1, 5000), default=500, show_default=True, help="The last ones."
)
@click.option("--follow", "-f", is_flag=True, help="Go on until the job has ended.")
@json_option
@pass_session
def logs(session: Session, job_id: str, task_name: str | None, level: str, limit: int, follow: bool) -> None:
    """What the tasks of a job said, each line with its attempt."""

    async def work(connection: Connection) -> None:
        found = await fetched(connection, await job_named(connection, job_id))
        chosen = _task_called(found, task_name)
        asking = _Lines(UUID(found["id"]), chosen, level)
        await asking.show(session.out, connection, limit=limit, newest=True)
        while follow and not found.get("finished_at"):
            await asyncio.sleep(FOLLOW_SECONDS)
            found = await fetched(connection, asking.job_id)
            await asking.show(session.out, connection, limit=5000)

    session.ask(work)


def _task_called(found: dict[str, Any], name: str | None) -> UUID | None:
    if name is None:
        return None
    ids = {task["name"]: UUID(task["id"]) for task in found["tasks"]}
    if name not in ids:
        raise NotFoundError(f"The job has no task {name!r}.", fix=f"It has: {', '.join(list(ids)[:20])}.")
    return ids[name]


@dataclass
class _Lines:
    """Reads on from where it was."""

    job_id: UUID
    task_id: UUID | None
    level: str
    after: int = 0
    names: dict[UUID, str] = field(default_factory=dict[UUID, str])

    async def show(self, out: Output, connection: Connection, *, limit: int, newest: bool = False) -> None:
        lines = await read_logs(
            connection, self.job_id, after=self.after, limit=limit, task_id=self.task_id,
            level=self.level, newest=newest,
        )  # fmt: skip
        if any(line.task_id not in self.names for line in lines):
            found = await fetched(connection, self.job_id)
            self.names = {UUID(task["id"]): task["name"] for task in found["tasks"]}
        for line in lines:
            self.after = line.n
            name = self.names.get(line.task_id, str(line.task_id))
            if out.json:
                out.record({"task": name, **msgspec.to_builtins(line, enc_hook=str)})
            else:
                fields = " ".join(f"{key}={_text(value)}" for key, value in line.fields.items())
                told = words.clean(f"{line.message} {fields}", 2000)
                at = line.at.astimezone().strftime("%H:%M:%S")
                out.line(f"{at} {line.level:<7} {name}#{line.attempt} {told}")
