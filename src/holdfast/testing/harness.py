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
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from holdfast.client import Client
from holdfast.definitions.payloads import to_json
from holdfast.definitions.tasks import Call, Task
from holdfast.engine import scratch
from holdfast.engine.connection import Connection, Database, open_connection
from holdfast.settings import Secret, Settings
from holdfast.testing.application import AppUnderTest
from holdfast.testing.clock import Clock
from holdfast.testing.drain import AttemptResult, DrainHost, DrainResult, drain
from holdfast.testing.kill_replay import (
    KillableCoroutine,
    ReplayResult,
    SimulatedKill,
    StateProbe,
    call_probe,
    check_replayable,
    check_same_result,
    close_killed_coroutines,
    make_killable,
)

R = TypeVar("R")
T = TypeVar("T")
AnyTask = Task[..., Any]

MAX_ATTEMPTS = 10_000
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
        self._application = AppUnderTest()
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

    async def drain(
        self, *, until: timedelta = timedelta(0), max_attempts: int = MAX_ATTEMPTS
    ) -> DrainResult:
        """Run all that is ready, and all that becomes ready within `until`, in moments.

        Consumers are given the messages that are visible. Their queues go by the real clock.
        """

        async def register_and_drain(host: DrainHost) -> DrainResult:
            await host.register_definitions()
            return await drain(host, until=until, max_attempts=max_attempts, state=self.state)

        return await self._with_host(self._running(), register_and_drain)

    async def run(self, call: Call[R], *, until: timedelta = timedelta(hours=1)) -> R:
        """Submit a call, run everything, and answer with its result, or raise what it raised."""
        self.use(call.task)
        job = await self.client.submit(call)
        result = await self.drain(until=until)
        exceptions = [a.exception for a in result.attempts if a.job_id == job.id and a.exception is not None]
        if (await job.get()).status != "succeeded" and exceptions:
            raise exceptions[-1]
        return await job.result(within=timedelta(0))

    def submitted(self, task: AnyTask | str | None = None) -> list[Submitted]:
        """Everything that was submitted and committed, or all of one task, oldest first."""
        name = task.name if isinstance(task, Task) else task
        rows = self._ask(scratch.list_submitted_tasks)
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
            what.mark_used()
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
        setup: StateProbe | None = None,
        snapshot: StateProbe | None = None,
        most: int = 200,
    ) -> ReplayResult:
        """Prove a task idempotent: kill it after each await, run it again, and compare what it left behind.

        `setup` brings your own things back to their beginning, before every round. `snapshot` answers with
        what must be the same in the end. Both may be asynchronous. The result, and what the task submitted,
        are compared anyway.
        """
        call.mark_used()
        check_replayable(call)
        before, dropped = asyncio.all_tasks(), list[KillableCoroutine]()
        try:
            expected, _ = await self._round(call, 0, setup, snapshot, dropped)
            places: list[str] = []
            for k in range(1, most + 1):
                found, place = await self._round(call, k, setup, snapshot, dropped)
                if place is None:
                    return ReplayResult(kills=len(places), output=expected["result"], places=places)
                check_same_result(place, expected, found)
                places.append(place)
        finally:
            await close_killed_coroutines(dropped, before)
        raise AssertionError(f"{call.task.name} has more than {most} awaits; say most=... to try them all.")

    async def _round(
        self,
        call: Call[Any],
        k: int,
        setup: StateProbe | None,
        snapshot: StateProbe | None,
        dropped: list[KillableCoroutine],
    ) -> tuple[dict[str, Any], str | None]:
        """One job: killed after the k-th suspension of its first attempt, then run to the end."""
        await call_probe(setup)
        known = {each.id for each in self.submitted()}
        fresh = Call(call.task, call.args)
        job = await self.client.submit(fresh)
        place = await self._kill(call.task, k, job.id, dropped) if k else None
        last = await self._with_host(self._running(call.task), lambda host: self._finish(host, job.id))
        others = [e for e in self.submitted() if e.id not in known and e.id != job.id]
        return {
            "result": (last.outcome, last.output),
            "submitted work": sorted((e.task, msgspec.json.encode(e.args)) for e in others),
            "snapshot": await call_probe(snapshot),
        }, place

    async def _kill(self, task: AnyTask, k: int, job: UUID, dropped: list[KillableCoroutine]) -> str | None:
        """Where it was killed; None when it ended before."""
        runs: list[KillableCoroutine] = []

        async def run_and_kill(host: DrainHost) -> str | None:
            spared = await scratch.list_sessions_in_transaction(host.connection)
            claimed, _ = await host.exchange()
            if claimed is None or (claimed.job_id or claimed.id) != job:
                raise AssertionError("Something else is ready; drain before you replay.")
            await self._warm(host)
            opened = host.open_executor(self.state)
            executor = await opened.__aenter__()
            try:
                _, outcome = await host.run_attempt(claimed, executor)
            except SimulatedKill as killed:
                dropped.extend(runs)
                await self._drop_connections(host, opened, spared)
                await scratch.move_clock(host.connection, timedelta(seconds=claimed.lease_s, hours=1))
                return str(killed)
            await opened.__aexit__(None, None, None)
            await host.exchange(outcome, claim=False)
            return None

        return await self._with_host(self._running(make_killable(task, k, runs)), run_and_kill)

    async def _warm(self, host: DrainHost) -> None:
        """Open connections before the task starts, so that opening them adds no suspensions to the task."""
        for database in (host.database, self.database()):
            async with database.connection() as connection:
                await connection.execute("select 1")

    async def _drop_connections(
        self, host: DrainHost, opened: AbstractAsyncContextManager[Any], spared: list[int]
    ) -> None:
        """Drop connections and open transactions, as the end of a killed process does."""
        with contextlib.suppress(Exception):
            # What the task still holds is never given back, so whoever waits for it is not waited for.
            async with asyncio.timeout(PATIENCE_SECONDS):
                await opened.__aexit__(None, None, None)
        host.database.terminate()
        for database in self._databases.values():
            database.terminate()
        await scratch.terminate_open_transactions(host.connection, spared)

    async def _finish(self, host: DrainHost, job: UUID) -> AttemptResult:
        """Run a job to its end and return its last attempt."""
        result = await drain(host, until=timedelta(hours=2), max_attempts=50, state=self.state)
        attempts = [attempt for attempt in result.attempts if attempt.job_id == job]
        if not attempts:
            task = next(task for task in self.submitted() if task.id == job)
            return AttemptResult(task.task, job, task.attempt, task.status, task.output)
        return attempts[-1]

    def _running(self, *instead: AnyTask) -> AppUnderTest:
        """The application, with other versions of some tasks. Other tasks stay where they are."""
        tasks = {task.name: task for task in instead} or self._application.tasks
        return AppUnderTest(
            tasks,
            {} if instead else self._application.schedules,
            None if self.state is not None else self._application.lifespan,
            {} if instead else self._application.consumers,
        )

    async def _with_host(self, application: AppUnderTest, work: Callable[[DrainHost], Awaitable[T]]) -> T:
        async with (
            Database(self._url, self._settings) as database,
            open_connection(self._url, self._settings) as connection,
        ):
            host = DrainHost(application, database, connection)
            try:
                return await work(host)
            finally:
                await host.close()

    def _ask(self, question: Callable[[Connection], Awaitable[T]]) -> T:
        answers: list[T] = []
        problems: list[BaseException] = []

        async def look() -> None:
            async with open_connection(self._url, self._settings) as connection:
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
