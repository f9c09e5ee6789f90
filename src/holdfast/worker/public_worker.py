"""`holdfast.Worker`: a worker inside your own process. The command `holdfast worker` uses it too."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import Collection, Iterable, Sequence
from contextlib import AsyncExitStack
from copy import copy
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, Self

from holdfast import webhooks
from holdfast.alerts import delivery
from holdfast.client import Client, open_client_database
from holdfast.definitions.consumers import Consumer
from holdfast.definitions.lifespan import Lifespan
from holdfast.definitions.schedules import Schedule, ScheduledTask
from holdfast.definitions.single_database import refuse_systems_on_shards
from holdfast.definitions.tasks import Task
from holdfast.definitions.validation import parse_duration
from holdfast.engine import embedded, install
from holdfast.engine.connection import Database
from holdfast.errors import (
    DatabaseFullError,
    DatabaseLoginError,
    DatabaseUnavailableError,
    InvalidError,
    RefusedError,
)
from holdfast.settings import Settings
from holdfast.worker.child_modules import collect_importable_task_names, list_defining_modules
from holdfast.worker.monitoring import monitor_worker
from holdfast.worker.queue_shares import QueueShare
from holdfast.worker.registration import register_definitions
from holdfast.worker.runtime import (
    DEFAULT_CONCURRENCY,
    DEFAULT_STOP_GRACE,
    RuntimeOptions,
    RunUntil,
    WorkerRuntime,
)
from holdfast.worker.sentry_check_ins import check_in_with_sentry
from holdfast.worker.shard_workers import ShardWorkers

MAX_DATABASE_WAIT_PAUSE_S: Final = 2.0
_CHILD_COMMAND: Final = (sys.executable, "-u", "-m", "holdfast.worker.child_main")


class Worker:
    """Run tasks and consume messages inside your own process.

    ```python
    import asyncio

    from holdfast import Client, Worker, task

    client = Client()


    @task
    async def greet(name: str) -> str:
        return f"Hello {name}"


    async def main() -> None:
        async with Worker(client, tasks=[greet]) as worker:
            running = asyncio.create_task(worker.run())
            job = await client.submit(greet("Ann"))
            print(await job.result())
            worker.stop()
            await running


    asyncio.run(main())
    ```

    Entering the block connects to the database of the client, checks its schema and registers the tasks and
    schedules. While the database cannot be reached, it waits; a missing or outdated schema is an error. `run`
    works until `stop` is called. Leaving the block stops the worker and closes its
    connections. In a web application, create the asyncio task when the application starts, and stop the
    worker when it ends.

    Arguments:
        client: the client whose database and settings the worker uses
        tasks: the tasks to run
        consumers: the consumers of message queues to run
        schedules: schedules to register, besides those that are attached to tasks
        lifespan: opens `ctx.state` before the first task and closes it after the last
        state: `ctx.state` of tasks when there is no lifespan
        queues: the queues to serve (default: those of the tasks); `QueueShare` adds a limit or a weight
        concurrency: maximum number of tasks that run at once
        grace: how long running tasks may take after `stop` before they are released to other workers
        until: "stopped"; "drained" to return when no task is ready; "once" to return after one claim
        max_tasks: return after this many tasks
        source: name of the application, stored with its task types and schedules (default: "app")
        deliver_webhooks: also deliver webhooks and notifications of alerts (default: unless `queues` is set)
        child_command: command that starts a child process for `process=True` tasks (default: one that imports
            the modules of the tasks)
        wait_for_database: wait while the database cannot be reached; False raises `DatabaseUnavailableError`
        shards: the shards of the client to serve (default: all)
    """

    def __init__(  # noqa: PLR0913  (keyword options, listed in the docstring)
        self,
        client: Client,
        *,
        tasks: Iterable[Task[..., Any]] = (),
        consumers: Iterable[Consumer[Any]] = (),
        schedules: Iterable[Schedule] = (),
        lifespan: Lifespan[Any] | None = None,
        state: Any = None,
        queues: Sequence[str | QueueShare] | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        grace: timedelta | float = DEFAULT_STOP_GRACE,
        until: RunUntil = "stopped",
        max_tasks: int | None = None,
        source: str = "app",
        deliver_webhooks: bool | None = None,
        child_command: Sequence[str] | None = None,
        wait_for_database: bool = True,
        shards: Collection[int] | None = None,
    ) -> None:
        if concurrency < 1:
            raise InvalidError(f"concurrency must be at least 1, got {concurrency}.", field="concurrency")
        self._client = client
        self._shard_numbers = _select_shards(client.shard_numbers, shards)
        self._tasks = _index_tasks_by_name(tasks)
        self._consumers = list(consumers)
        if not self._tasks and not self._consumers:
            raise InvalidError(
                "The worker has no tasks and no consumers.", fix="Pass tasks=[...].", field="tasks"
            )
        self._schedules = _collect_schedules(schedules, self._tasks.values())
        self._concurrency = concurrency
        self._shard_workers: ShardWorkers | None = None
        self._health_port_offset = 0
        self._source = source
        self._wait_for_database = wait_for_database
        self._deliver_webhooks = not queues if deliver_webhooks is None else deliver_webhooks
        self._options = RuntimeOptions(
            queues=list(queues or ()),
            concurrency=concurrency,
            grace=parse_duration(grace, "grace"),
            state=state,
            lifespan=lifespan,
            until=until,
            max_tasks=max_tasks,
        )
        self._options.update(_build_child_process_options(self._tasks.values(), lifespan, child_command))
        self._resources = AsyncExitStack()
        self._runtime: WorkerRuntime | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_event = asyncio.Event()
        self._stopping = False
        self._running: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        if self._client.shard_numbers:
            refuse_systems_on_shards(task.function for task in self._tasks.values())
            refuse_systems_on_shards(consumer.function for consumer in self._consumers)
            self._loop = asyncio.get_running_loop()
            self._shard_workers = ShardWorkers(
                self._client,
                self._shard_numbers,
                self._schedules,
                self._consumers,
                self._concurrency,
                self._create_shard_worker,
            )
            return self
        async with AsyncExitStack() as resources:
            await self._open_runtime(resources)
            self._resources = resources.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        try:
            if self._running is not None:
                await asyncio.wait({self._running})
        finally:
            self._runtime = None
            await self._resources.aclose()

    @property
    def name(self) -> str:
        """The name of the worker, as `holdfast workers list` shows it."""
        return self._get_runtime().name

    async def run(self) -> None:
        """Run tasks until `stop` is called, then finish or release running tasks and return."""
        if self._shard_workers is not None:
            await self._run_shard_workers(self._shard_workers)
            return
        if self._runtime is None and self._stopping:  # stopped while it waited for the database
            return
        runtime = self._get_runtime()
        if self._running is not None:
            raise RefusedError("This worker runs already.", fix="Create another worker.")
        self._running = asyncio.get_running_loop().create_future()
        try:
            settings = self._build_monitoring_settings()
            with monitor_worker(runtime, settings):
                async with check_in_with_sentry(runtime.database, settings):
                    await runtime.run(self._stop_event)
        finally:
            self._running.set_result(None)

    def stop(self, *, graceful: bool = True) -> None:
        """Stop claiming tasks, let running tasks finish within the grace, then make `run` return.

        With `graceful=False`, also after an earlier call, running tasks are released at once: another worker
        runs them again, and no attempt is counted. You may call it from signal handlers and other threads.
        """
        self._stopping = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._request_stop, graceful)

    async def _run_shard_workers(self, workers: ShardWorkers) -> None:
        self._running = asyncio.get_running_loop().create_future()
        try:
            await workers.run()
        finally:
            self._running.set_result(None)

    def _create_shard_worker(
        self, number: int, slots: int, schedules: list[Schedule], consumers: list[Consumer[Any]]
    ) -> Worker:
        """Return a worker like this one for one shard, with its share of the slots."""
        worker = copy(self)
        worker._client = self._client.shard(number)
        worker._schedules, worker._consumers = schedules, consumers
        worker._options = {**self._options, "concurrency": slots}
        worker._resources = AsyncExitStack()
        worker._shard_workers = None
        worker._stop_event = asyncio.Event()
        worker._running = None
        worker._health_port_offset = self._shard_numbers.index(number)
        return worker

    def _build_monitoring_settings(self) -> Settings:
        """Return the settings with the health port of this worker: each shard has the next one."""
        settings = self._client.settings
        if not settings.health_port:
            return settings
        return replace(settings, health_port=settings.health_port + self._health_port_offset)

    def _request_stop(self, graceful: bool) -> None:
        if self._shard_workers is not None:
            self._shard_workers.stop(graceful=graceful)
        if not graceful and self._runtime is not None:
            self._runtime.end_grace()
        self._stop_event.set()

    async def _open_runtime(self, resources: AsyncExitStack) -> None:
        self._loop = asyncio.get_running_loop()
        url, settings = (await open_client_database(self._client)).url, self._client.settings
        database = await resources.enter_async_context(Database(url, settings))
        restarter = await asyncio.to_thread(_find_embedded_server, url.reveal(), settings)
        if restarter is not None:
            resources.callback(restarter.close)
            self._options["restart_database"] = restarter.restart
        if not await self._register_when_reachable(database):
            return
        tasks = dict(self._tasks)
        if self._deliver_webhooks:
            tasks = webhooks.add_webhook_delivery_task(tasks, (), database)
            tasks.setdefault(delivery.ALERT_TASK_TYPE, delivery.build_alert_task(database))
        self._runtime = WorkerRuntime(database, tasks, self._consumers, **self._options)
        if self._stopping:
            self._stop_event.set()

    async def _register_when_reachable(self, database: Database) -> bool:
        """Check the schema and register the definitions. Return False if the worker was stopped before.

        Waits while the database is unreachable, starts up or has no free connection. The wait is reported by
        one event, because every attempt to connect is (`engine.availability`).
        """
        pause_s = 0.25
        while not self._stopping:
            try:
                async with database.connection() as connection:
                    await install.verify_schema(connection)
                    await register_definitions(
                        connection, self._source, self._tasks.values(), self._schedules
                    )
            except DatabaseLoginError:
                raise
            except (DatabaseUnavailableError, DatabaseFullError):
                if not self._wait_for_database:
                    raise
            else:
                return True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(random.uniform(pause_s / 2, pause_s)):  # noqa: S311
                    await self._stop_event.wait()
            pause_s = min(pause_s * 2, MAX_DATABASE_WAIT_PAUSE_S)
        return False

    def _get_runtime(self) -> WorkerRuntime:
        if self._runtime is None:
            raise RefusedError(
                "The worker is not open.", fix="Use it in a block: async with Worker(...) as worker."
            )
        return self._runtime


def _build_child_process_options(
    tasks: Collection[Task[..., Any]], lifespan: Lifespan[Any] | None, command: Sequence[str] | None
) -> RuntimeOptions:
    if command is not None:
        return RuntimeOptions(
            child_command=list(command), child_task_types=frozenset(task.name for task in tasks)
        )
    return RuntimeOptions(
        child_command=_CHILD_COMMAND,
        child_task_types=collect_importable_task_names(tasks),
        child_modules=list_defining_modules(tasks, lifespan),
    )


class _EmbeddedServer:
    """The embedded database of a worker, which the worker can restart."""

    def __init__(self, server: embedded.EmbeddedServer, settings: Settings) -> None:
        self._server = server
        self._settings = settings

    def restart(self) -> None:
        restarted = embedded.start_server(self._settings)
        self._server.release()
        self._server = restarted

    def close(self) -> None:
        self._server.release()


def _find_embedded_server(url: str, settings: Settings) -> _EmbeddedServer | None:
    """Return the embedded server with this URL, or None if the database is not embedded."""
    if settings.database_url is not None:
        return None
    server = embedded.find_running_server(settings)
    if server is None:
        return None
    if server.url.reveal() != url:
        server.release()
        return None
    return _EmbeddedServer(server, settings)


def _index_tasks_by_name(tasks: Iterable[Task[..., Any]]) -> dict[str, Task[..., Any]]:
    by_name: dict[str, Task[..., Any]] = {}
    for task in tasks:
        if not isinstance(task, Task):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidError(
                f"{task!r} is not a task.", fix="Decorate the function with @task.", field="tasks"
            )
        if by_name.setdefault(task.name, task) is not task:
            raise InvalidError(
                f"Two tasks have the name {task.name!r}.", fix="Rename one: @task(name=...).", field="tasks"
            )
    return by_name


def _select_shards(known: Sequence[int], selected: Collection[int] | None) -> list[int]:
    """Return the shards to serve, in their order. Raise InvalidError if the client does not have one."""
    unknown = sorted(set(selected or ()) - set(known))
    if unknown:
        raise InvalidError(
            f"The client has no shard {unknown[0]}.",
            fix=f"Its shards are {', '.join(map(str, known)) or 'none'}.",
            field="shards",
        )
    return [number for number in known if selected is None or number in selected]


def _collect_schedules(schedules: Iterable[Schedule], tasks: Iterable[Task[..., Any]]) -> list[Schedule]:
    attached = [schedule for task in tasks if isinstance(task, ScheduledTask) for schedule in task.schedules]
    return list({schedule.name: schedule for schedule in [*attached, *schedules]}.values())
