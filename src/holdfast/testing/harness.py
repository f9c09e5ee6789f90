"""What the fixture `hf` is: one test's database, clock and tasks, and questions about what was submitted.

Questions are answered at once and are not awaited, because an assertion that somebody forgets to await would
always hold. They look at what was committed, from a connection of their own in a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast
from uuid import UUID

import msgspec

from holdfast.client import Client
from holdfast.definitions.payloads import to_json
from holdfast.definitions.tasks import Call, Task
from holdfast.engine import scratch
from holdfast.engine.connection import Connection, Database, connected
from holdfast.settings import Secret, Settings
from holdfast.testing.application import Application
from holdfast.testing.clock import Clock
from holdfast.testing.replaying import (
    Killed,
    Probe,
    Replayed,
    Stopped,
    abandon,
    ask,
    check_call,
    compare,
    stoppable,
)
from holdfast.testing.running import Drained, Ran, Runner, declare_all, drain

R = TypeVar("R")
T = TypeVar("T")
AnyTask = Task[..., Any]

MOST_ATTEMPTS = 10_000
PATIENCE_SECONDS = 0.25


@dataclass(frozen=True)
class Submitted:
    """A task that was submitted. `args` and `output` are as JSON has them."""

    id: UUID
    job_id: UUID
    task: str
    queue: str
    status: str
    attempt: int
    args: dict[str, Any]
    output: Any
    owner: str | None
    labels: dict[str, str]
    due_at: datetime
    name: str = field(default="", repr=False)


class Holdfast:
    """The real engine on a database of the test's own, and the test's tasks."""

    def __init__(self, url: Secret, settings: Settings) -> None:
        self._url = url
        self._settings = settings
        self._application = Application()
        self._databases: dict[asyncio.AbstractEventLoop, Database] = {}
        self.client = Client(url.reveal(), settings=settings)
        self.clock = Clock(url, settings)
        self.state: Any = None
        """What tasks find in `ctx.state` when there is no lifespan, or instead of it: a double."""

    @property
    def url(self) -> str:
        """The address of the test's database, for your own connections to it."""
        return self._url.reveal()

    def use(self, *parts: object) -> None:
        """What `drain` runs: modules, tasks, consumers, schedules, and a lifespan."""
        self._application.add(parts)

    async def advance(self, by: timedelta) -> None:
        """Move the clock. Nothing runs by that; see `drain`."""
        await self.clock.advance(by)

    async def drain(self, *, until: timedelta = timedelta(0), most: int = MOST_ATTEMPTS) -> Drained:
        """Run all that is ready, and all that becomes ready within `until`, in moments.

        Consumers are given the messages that are visible. Their queues go by the real clock.
        """

        async def work(runner: Runner) -> Drained:
            await declare_all(runner)
            return await drain(runner, until=until, most=most, state=self.state)

        return await self._with_runner(self._running(), work)

    async def run(self, call: Call[R], *, until: timedelta = timedelta(hours=1)) -> R:
        """Submit a call, run everything, and answer with its result, or raise what it raised."""
        self.use(call.task)
        job = await self.client.submit(call)
        drained = await self.drain(until=until)
        mine = [each for each in drained.ran if each.job_id == job.id and each.problem is not None]
        seen = await job.get()
        if seen.status != "succeeded" and mine:
            raise cast("BaseException", mine[-1].problem)
        return await job.result(within=timedelta(0))

    def submitted(self, task: AnyTask | str | None = None) -> list[Submitted]:
        """Everything that was submitted and committed, or all of one task, oldest first."""
        name = task.name if isinstance(task, Task) else task
        rows = self._ask(scratch.submitted)
        found = [_submitted(dict(row)) for row in rows]
        return [each for each in found if name is None or each.task == name]

    def assert_submitted(
        self, what: Call[Any] | AnyTask, /, *, count: int | None = None, **args: Any
    ) -> list[Submitted]:
        """A task was submitted with these arguments; `count` says how often. Answers with those.

        `assert_submitted(send, to="ann")` looks at the named arguments only, `assert_submitted(send("ann"))`
        at all of them.
        """
        if isinstance(what, Call):
            what.use()
            task, wanted = what.task, _with_defaults(what.task, _plain(dict(what.args)))
        else:
            task, wanted = what, _plain(args)
        there = self.submitted(task)
        fitting = [each for each in there if _fits(_with_defaults(task, each.args), wanted)]
        if len(fitting) == count or (count is None and fitting):
            return fitting
        times = "" if count is None else f" {count} times, but {len(fitting)} times"
        listed = "".join(f"\n  {each.task}({_written(each.args)})" for each in there) or "\n  nothing"
        raise AssertionError(
            f"{task.name}({_written(wanted)}) was not submitted{times}. Of that task there is:{listed}"
        )

    async def replay(
        self,
        call: Call[Any],
        *,
        setup: Probe | None = None,
        snapshot: Probe | None = None,
        most: int = 200,
    ) -> Replayed:
        """Prove a task idempotent: kill it after each await, run it again, and compare what it left behind.

        `setup` brings your own things back to their beginning, before every round. `snapshot` answers with
        what must be the same in the end. Both may be asynchronous. The result, and what the task submitted,
        are compared anyway.
        """
        call.use()
        check_call(call)
        before, dropped = asyncio.all_tasks(), list[Stopped]()
        try:
            expected, _ = await self._round(call, 0, setup, snapshot, dropped)
            places: list[str] = []
            for k in range(1, most + 1):
                found, place = await self._round(call, k, setup, snapshot, dropped)
                if place is None:
                    return Replayed(kills=len(places), output=expected["result"], places=places)
                compare(place, expected, found)
                places.append(place)
        finally:
            await abandon(dropped, before)
        raise AssertionError(f"{call.task.name} has more than {most} awaits; say most=... to try them all.")

    async def _round(
        self, call: Call[Any], k: int, setup: Probe | None, snapshot: Probe | None, dropped: list[Stopped]
    ) -> tuple[dict[str, Any], str | None]:
        """One job: killed after the k-th suspension of its first attempt, then run to the end."""
        await ask(setup)
        known = {each.id for each in self.submitted()}
        fresh = Call(call.task, call.args)
        job = await self.client.submit(fresh)
        place = await self._kill(call.task, k, job.id, dropped) if k else None
        ran = await self._with_runner(self._running(call.task), lambda runner: self._finish(runner, job.id))
        others = [e for e in self.submitted() if e.id not in known and e.id != job.id]
        return {
            "result": (ran.outcome, ran.output),
            "submitted work": sorted((e.task, msgspec.json.encode(e.args)) for e in others),
            "snapshot": await ask(snapshot),
        }, place

    async def _kill(self, task: AnyTask, k: int, job: UUID, dropped: list[Stopped]) -> str | None:
        """Where it was killed; None when it ended before."""
        runs: list[Stopped] = []

        async def first(runner: Runner) -> str | None:
            spared = await scratch.in_transaction(runner.connection)
            claimed = await runner.exchange()
            if claimed is None or (claimed.job_id or claimed.id) != job:
                raise AssertionError("Something else is ready; drain before you replay.")
            await self._warm(runner)
            opened = runner.contexts(self.state)
            contexts = await opened.__aenter__()
            try:
                # In a task of its own: a time limit that it leaves behind may cancel nobody else.
                _, outcome = await asyncio.create_task(runner.attempt(claimed, contexts))
            except Killed as killed:
                dropped.extend(runs)
                await self._bury(runner, opened, spared)
                await scratch.move_clock(runner.connection, timedelta(seconds=claimed.lease_s, hours=1))
                return str(killed)
            await opened.__aexit__(None, None, None)
            await runner.exchange(outcome, claim=False)
            return None

        return await self._with_runner(self._running(stoppable(task, k, runs)), first)

    async def _warm(self, runner: Runner) -> None:
        """Connections are there before the task starts: how they come about is not what is replayed."""
        for database in (runner.database, self.database()):
            async with database.connection() as connection:
                await connection.execute("select 1")

    async def _bury(
        self, runner: Runner, opened: AbstractAsyncContextManager[Any], spared: list[int]
    ) -> None:
        """What a killed process leaves: no connection, and no open transaction."""
        with contextlib.suppress(Exception):
            # What the task still holds is never given back, so whoever waits for it is not waited for.
            async with asyncio.timeout(PATIENCE_SECONDS):
                await opened.__aexit__(None, None, None)
        runner.database.terminate()
        for database in self._databases.values():
            database.terminate()
        await scratch.end_open_transactions(runner.connection, spared)

    async def _finish(self, runner: Runner, job: UUID) -> Ran:
        """The last attempt of a job, after all the others."""
        drained = await drain(runner, until=timedelta(hours=2), most=50, state=self.state)
        mine = [each for each in drained.ran if each.job_id == job]
        if not mine:
            done = next(each for each in self.submitted() if each.id == job)
            return Ran(done.task, job, done.attempt, done.status, done.output)
        return mine[-1]

    def _running(self, *instead: AnyTask) -> Application:
        """The application, with other versions of some tasks. Other tasks stay where they are."""
        tasks = {task.name: task for task in instead} or self._application.tasks
        return Application(
            tasks,
            {} if instead else self._application.schedules,
            None if self.state is not None else self._application.lifespan,
            {} if instead else self._application.consumers,
        )

    async def _with_runner(self, application: Application, work: Callable[[Runner], Awaitable[T]]) -> T:
        async with (
            Database(self._url, self._settings) as database,
            connected(self._url, self._settings) as connection,
        ):
            runner = Runner(application, database, connection)
            try:
                return await work(runner)
            finally:
                await runner.close()

    def _ask(self, question: Callable[[Connection], Awaitable[T]]) -> T:
        answers: list[T] = []
        problems: list[BaseException] = []

        async def look() -> None:
            async with connected(self._url, self._settings) as connection:
                answers.append(await question(connection))

        def thread() -> None:
            try:
                asyncio.run(look())
            except BaseException as problem:
                problems.append(problem)

        looking = threading.Thread(target=thread, name="hf")
        looking.start()
        looking.join()
        if problems:
            raise problems[0]
        return answers[0]

    def database(self) -> Database:
        """For clients without an address of their own, one for each event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._databases:
            self._databases[loop] = Database(self._url, self._settings)
        return self._databases[loop]

    async def close(self) -> None:
        await self.client.close()
        here = asyncio.get_running_loop()
        for loop, database in self._databases.items():
            if loop is here:
                await database.close()
            elif loop.is_running():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(database.close(), loop))
        self._databases.clear()


def _submitted(row: Mapping[str, Any]) -> Submitted:
    return Submitted(
        id=row["id"],
        job_id=row["job_id"],
        task=row["type"],
        queue=row["queue"],
        status=row["status"],
        attempt=row["attempt"],
        args=_decoded(row["args"]) or {},
        output=_decoded(row["output"]),
        owner=row["owner"],
        labels=_decoded(row["labels"]) or {},
        due_at=row["due_at"],
        name=row["name"],
    )


def _decoded(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


def _plain(args: Mapping[str, Any]) -> dict[str, Any]:
    return dict(msgspec.json.decode(to_json(dict(args), what="args")))


def _with_defaults(task: AnyTask, args: Mapping[str, Any]) -> dict[str, Any]:
    parameters = task.signature.parameters
    defaults = {n: p.default for n, p in parameters.items() if p.default is not p.empty and n not in args}
    return {**_plain(defaults), **args}


def _fits(args: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(name in args and args[name] == value for name, value in wanted.items())


def _written(args: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in args.items())
