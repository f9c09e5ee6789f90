"""The fixture `hf`: the database, clock and tasks of one test, and assertions about submitted tasks.

Assertions are plain functions, because an assertion that a test forgets to await would always hold. They read
committed rows on their own connection, in their own thread.
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
from holdfast.definitions.payloads import encode_payload
from holdfast.definitions.tasks import Call, Task
from holdfast.definitions.validation import parse_duration
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
    call_state_probe,
    check_same_result,
    check_task_is_async,
    close_killed_coroutines,
    make_killable,
)

R = TypeVar("R")
T = TypeVar("T")
AnyTask = Task[..., Any]

MAX_DRAIN_ATTEMPTS = 10_000
LIFESPAN_CLOSE_TIMEOUT_S = 0.25


@dataclass(frozen=True)
class SubmittedTask:
    """A submitted task. `args` and `output` are JSON values."""

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
    """The fixture `hf`: the real engine on a database of the test, with the test's tasks."""

    def __init__(self, url: Secret, settings: Settings) -> None:
        self._url = url
        self._settings = settings
        self._application = AppUnderTest()
        self._databases: dict[asyncio.AbstractEventLoop, Database] = {}
        self.client = Client(url.reveal(), settings=settings)
        self.clock = Clock(url, settings)
        self.state: Any = None
        """The value of `ctx.state`. Set it to replace the state that a lifespan provides."""

    @property
    def url(self) -> str:
        """The URL of the test's database, for your own connections."""
        return self._url.reveal()

    def use(self, *parts: object) -> None:
        """Add modules, tasks, consumers, schedules and a lifespan that `drain` runs."""
        self._application.add_definitions(parts)

    async def advance(self, by: timedelta | float) -> None:
        """Move the clock forward. This runs no tasks; call `drain` for that."""
        await self.clock.advance(by)

    async def drain(
        self, *, until: timedelta | float = timedelta(0), max_attempts: int = MAX_DRAIN_ATTEMPTS
    ) -> DrainResult:
        """Run every task that is ready or becomes ready within `until`, without waiting.

        Consumers receive the messages that are visible. Message queues follow the real clock.
        """
        duration = parse_duration(until, "until")

        async def register_and_drain(host: DrainHost) -> DrainResult:
            await host.register_definitions()
            return await drain(host, until=duration, max_attempts=max_attempts, state=self.state)

        return await self._run_with_drain_host(self._build_application(), register_and_drain)

    async def run(self, call: Call[R], *, until: timedelta | float = timedelta(hours=1)) -> R:
        """Submit a call, drain, and return its result, or raise the exception that it raised."""
        self.use(call.task)
        job = await self.client.submit(call)
        result = await self.drain(until=until)
        exceptions = [a.exception for a in result.attempts if a.job_id == job.id and a.exception is not None]
        if (await job.get()).status != "succeeded" and exceptions:
            raise exceptions[-1]
        return await job.result(within=timedelta(0))

    def submitted(self, task: AnyTask | str | None = None) -> list[SubmittedTask]:
        """Return all committed tasks, or those of one task type, oldest first."""
        name = task.name if isinstance(task, Task) else task
        rows = self._run_query(scratch.list_submitted_tasks)
        tasks = [_build_submitted_task(dict(row)) for row in rows]
        return [each for each in tasks if name is None or each.task == name]

    def assert_submitted(
        self, what: Call[Any] | AnyTask, /, *, count: int | None = None, **args: Any
    ) -> list[SubmittedTask]:
        """Assert that a task was submitted with these arguments, `count` times if given. Return the matches.

        `assert_submitted(send, to="ann")` compares the named arguments only, `assert_submitted(send("ann"))`
        all of them.
        """
        if isinstance(what, Call):
            what.mark_used()
            task, expected = what.task, _add_default_arguments(what.task, _to_json_values(dict(what.args)))
        else:
            task, expected = what, _to_json_values(args)
        submitted = self.submitted(task)
        matches = [
            each
            for each in submitted
            if _matches_arguments(_add_default_arguments(task, each.args), expected)
        ]
        if len(matches) == count or (count is None and matches):
            return matches
        times = "" if count is None else f" {count} times, but {len(matches)} times"
        calls = "".join(f"\n  {each.task}({_format_args(each.args)})" for each in submitted) or "\n  nothing"
        raise AssertionError(
            f"{task.name}({_format_args(expected)}) was not submitted{times}."
            f" Submitted calls of this task:{calls}"
        )

    async def replay(
        self,
        call: Call[Any],
        *,
        setup: StateProbe | None = None,
        snapshot: StateProbe | None = None,
        max_awaits: int = 200,
    ) -> ReplayResult:
        """Prove that a task is idempotent: kill it after each await, run it again, and compare the effects.

        `setup` resets your own state before every round. `snapshot` returns the state that must be the same
        at the end. Both may be asynchronous. The result and the tasks that were submitted are always
        compared.
        """
        call.mark_used()
        check_task_is_async(call)
        before, dropped = asyncio.all_tasks(), list[KillableCoroutine]()
        try:
            expected, _ = await self._run_replay_round(call, 0, setup, snapshot, dropped)
            places: list[str] = []
            for k in range(1, max_awaits + 1):
                actual, place = await self._run_replay_round(call, k, setup, snapshot, dropped)
                if place is None:
                    return ReplayResult(kills=len(places), output=expected["result"], places=places)
                check_same_result(place, expected, actual)
                places.append(place)
        finally:
            await close_killed_coroutines(dropped, before)
        raise AssertionError(
            f"{call.task.name} has more than {max_awaits} awaits; pass max_awaits=... to try all of them."
        )

    async def _run_replay_round(
        self,
        call: Call[Any],
        k: int,
        setup: StateProbe | None,
        snapshot: StateProbe | None,
        dropped: list[KillableCoroutine],
    ) -> tuple[dict[str, Any], str | None]:
        """Run one job: kill it after the k-th await of its first attempt, then run it to the end."""
        await call_state_probe(setup)
        known = {each.id for each in self.submitted()}
        fresh = Call(call.task, call.args)
        job = await self.client.submit(fresh)
        place = await self._kill_at_await(call.task, k, job.id, dropped) if k else None
        last = await self._run_with_drain_host(
            self._build_application(call.task), lambda host: self._run_job_to_end(host, job.id)
        )
        others = [e for e in self.submitted() if e.id not in known and e.id != job.id]
        return {
            "result": (last.outcome, last.output),
            "submitted work": sorted((e.task, msgspec.json.encode(e.args)) for e in others),
            "snapshot": await call_state_probe(snapshot),
        }, place

    async def _kill_at_await(
        self, task: AnyTask, k: int, job: UUID, dropped: list[KillableCoroutine]
    ) -> str | None:
        """Kill a task at its k-th await. Return the place, or None when the task ended before."""
        runs: list[KillableCoroutine] = []

        async def run_attempt_until_kill(host: DrainHost) -> str | None:
            spared = await scratch.list_sessions_in_transaction(host.connection)
            claimed, _ = await host.record_and_claim()
            if claimed is None or (claimed.job_id or claimed.id) != job:
                raise AssertionError("Other tasks are ready. Call hf.drain() before hf.replay().")
            await self._warm_up_pools(host)
            opened = host.open_executor(self.state)
            executor = await opened.__aenter__()
            try:
                _, outcome = await host.run_attempt(claimed, executor)
            except SimulatedKill as killed:
                dropped.extend(runs)
                await self._drop_connections(host, opened, spared)
                await scratch.advance_database_clock(
                    host.connection, timedelta(seconds=claimed.lease_s, hours=1)
                )
                return str(killed)
            await opened.__aexit__(None, None, None)
            await host.record_and_claim(outcome, claim=False)
            return None

        return await self._run_with_drain_host(
            self._build_application(make_killable(task, k, runs)), run_attempt_until_kill
        )

    async def _warm_up_pools(self, host: DrainHost) -> None:
        """Open connections before the task starts, so that opening them adds no suspensions to the task."""
        for database in (host.database, self.database()):
            async with database.connection() as connection:
                await connection.execute("select 1")

    async def _drop_connections(
        self, host: DrainHost, opened: AbstractAsyncContextManager[Any], spared: list[int]
    ) -> None:
        """Drop connections and their open transactions, as if the process were killed."""
        with contextlib.suppress(Exception):
            # The killed task never returns what it holds, so do not wait for the lifespan to close.
            async with asyncio.timeout(LIFESPAN_CLOSE_TIMEOUT_S):
                await opened.__aexit__(None, None, None)
        host.database.terminate()
        for database in self._databases.values():
            database.terminate()
        await scratch.terminate_sessions_in_transaction(host.connection, spared)

    async def _run_job_to_end(self, host: DrainHost, job: UUID) -> AttemptResult:
        """Run a job to its end and return its last attempt."""
        result = await drain(host, until=timedelta(hours=2), max_attempts=50, state=self.state)
        attempts = [attempt for attempt in result.attempts if attempt.job_id == job]
        if not attempts:
            task = next(task for task in self.submitted() if task.id == job)
            return AttemptResult(task.task, job, task.attempt, task.status, task.output)
        return attempts[-1]

    def _build_application(self, *instead: AnyTask) -> AppUnderTest:
        """Build the application of the test, with the passed tasks in place of its own."""
        tasks = {task.name: task for task in instead} or self._application.tasks
        return AppUnderTest(
            tasks,
            {} if instead else self._application.schedules,
            None if self.state is not None else self._application.lifespan,
            {} if instead else self._application.consumers,
        )

    async def _run_with_drain_host(
        self, application: AppUnderTest, work: Callable[[DrainHost], Awaitable[T]]
    ) -> T:
        async with (
            Database(self._url, self._settings) as database,
            open_connection(self._url, self._settings) as connection,
        ):
            host = DrainHost(application, database, connection)
            try:
                return await work(host)
            finally:
                await host.close()

    def _run_query(self, query: Callable[[Connection], Awaitable[T]]) -> T:
        """Run a query in a thread, so that it works with and without a running event loop."""
        results: list[T] = []
        errors: list[BaseException] = []

        async def run_query() -> None:
            async with open_connection(self._url, self._settings) as connection:
                results.append(await query(connection))

        def run_loop() -> None:
            try:
                asyncio.run(run_query())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run_loop, name="hf")
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    def database(self) -> Database:
        """Return the connection pool of the running event loop.

        Clients without a URL of their own use it.
        """
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


def _build_submitted_task(row: Mapping[str, Any]) -> SubmittedTask:
    return SubmittedTask(
        id=row["id"],
        job_id=row["job_id"],
        task=row["type"],
        queue=row["queue"],
        status=row["status"],
        attempt=row["attempt"],
        args=_decode_json(row["args"]) or {},
        output=_decode_json(row["output"]),
        owner=row["owner"],
        labels=_decode_json(row["labels"]) or {},
        due_at=row["due_at"],
        name=row["name"],
    )


def _decode_json(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


def _to_json_values(args: Mapping[str, Any]) -> dict[str, Any]:
    return dict(msgspec.json.decode(encode_payload(dict(args), what="args")))


def _add_default_arguments(task: AnyTask, args: Mapping[str, Any]) -> dict[str, Any]:
    parameters = task.signature.parameters
    defaults = {n: p.default for n, p in parameters.items() if p.default is not p.empty and n not in args}
    return {**_to_json_values(defaults), **args}


def _matches_arguments(args: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    return all(name in args and args[name] == value for name, value in expected.items())


def _format_args(args: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in args.items())
