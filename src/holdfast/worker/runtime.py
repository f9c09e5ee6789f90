"""The parts of a running worker, connected: claim tasks for free slots, run them, hand in their outcomes.

A worker stores nothing that matters. The fetcher decides when to claim and for how many slots. The task
executor turns each claimed task into one outcome. The outbox holds outcomes until the database has confirmed
them. The heartbeat renews leases from a process of its own. Consumers of message queues have a loop each and
do not use the fetcher. `holdfast.Worker` builds a runtime from a client; tests and benchmarks use it
directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Literal, TypedDict, Unpack

from holdfast import telemetry
from holdfast.engine import leases
from holdfast.engine.connection import Database
from holdfast.engine.leases import Lease, LeasedTask, WorkerCommand
from holdfast.engine.listener import MESSAGE_CHANNEL, TASK_CHANNEL, NotificationListener
from holdfast.errors import DatabaseUnavailableError, HoldfastError
from holdfast.version import __version__
from holdfast.worker.attempts import STOP_REASON_RELEASED
from holdfast.worker.child_pool import ChildProcessPool
from holdfast.worker.context_factory import ContextFactory
from holdfast.worker.fetcher import TaskFetcher
from holdfast.worker.files import TaskFiles
from holdfast.worker.heartbeat import Heartbeat
from holdfast.worker.lifespan import Lifespan, StoppedBeforeStart, open_lifespan
from holdfast.worker.maintenance import (
    AlertEvaluation,
    DatabaseRestarter,
    PeriodicMaintenance,
    UrgentMaintenance,
)
from holdfast.worker.messages.consumers import AnyConsumer, ConsumerLoops
from holdfast.worker.outbox import Outbox
from holdfast.worker.outcomes import AnyTask
from holdfast.worker.queue_shares import QueueSelector, QueueShare
from holdfast.worker.task_executor import TaskExecutor
from holdfast.worker.thread_pool import TaskThreadPool

DEFAULT_CONCURRENCY: Final = 10
DEFAULT_STOP_GRACE: Final = timedelta(seconds=25)
ATTEMPT_RELEASE_TIMEOUT: Final = timedelta(
    seconds=5
)  # for released attempts to end and their outcomes to be confirmed
MARK_STOPPED_TIMEOUT_S: Final = 2.0

RunUntil = Literal["stopped", "drained", "once"]


class RuntimeOptions(TypedDict, total=False):
    """Options of a worker runtime.

    queues: queues to serve, with optional limits and weights (default: the queues of the tasks)
    concurrency: maximum number of tasks that run at once (default: 10)
    grace: how long running tasks may take after a stop before they are released (default: 25 seconds)
    state: `ctx.state` of tasks when there is no lifespan
    lifespan: opens `ctx.state` before the first task and closes it after the last
    child_command: command that starts a child process for `process=True` tasks
    child_task_types: tasks that a child process can run (default: all)
    child_modules: modules that a child process imports to find its tasks
    restart_database: called in a thread while the database is unreachable, to restart an embedded one
    until: "stopped", "drained" (nothing is ready any more) or "once" (after one claim)
    max_tasks: stop after this many tasks
    """

    queues: Sequence[str | QueueShare]
    concurrency: int
    grace: timedelta
    state: Any
    lifespan: Lifespan[Any] | None
    child_command: Sequence[str] | None
    child_task_types: Collection[str]
    child_modules: Sequence[str]
    restart_database: Callable[[], object] | None
    until: RunUntil
    max_tasks: int | None


class WorkerRuntime:
    def __init__(
        self,
        database: Database,
        tasks: Mapping[str, AnyTask],
        consumers: Sequence[AnyConsumer] = (),
        **options: Unpack[RuntimeOptions],
    ) -> None:
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.database = database
        self._tasks = dict(tasks)
        self._grace = options.get("grace", DEFAULT_STOP_GRACE)
        self._until = options.get("until", "stopped")
        self._lifespan = options.get("lifespan")
        self._concurrency = concurrency = options.get("concurrency", DEFAULT_CONCURRENCY)
        selector = QueueSelector(options.get("queues") or sorted({task.queue for task in tasks.values()}))
        self._outbox = Outbox()
        self._fetcher = TaskFetcher(
            database, self.name, selector, sorted(self._tasks), concurrency, self._outbox
        )
        self._threads = TaskThreadPool(concurrency)
        files = TaskFiles(database)
        self.contexts = ContextFactory(database, state=options.get("state"), files=files)
        self._child_pool = self._create_child_pool(options)
        self._executor = TaskExecutor(
            self._tasks,
            self._fetcher.running,
            self._outbox,
            self._threads,
            self._child_pool,
            self.contexts,
            concurrency,
        )
        self._consumers = ConsumerLoops(database, consumers, self._is_listener_working)
        self._heartbeat = Heartbeat(
            database.url,
            database.settings,
            self.name,
            self._fetcher.running,
            self._consumers.visibility,
            self.build_status,
        )
        self._maintenance = PeriodicMaintenance(database, self._is_busy, files.try_sweep_files)
        self._urgent_maintenance = UrgentMaintenance(database, self._is_listener_working)
        self._alert_evaluation = AlertEvaluation(database)
        self._database_restarter = DatabaseRestarter(
            options.get("restart_database"), self._is_database_unreachable
        )
        handlers = {
            TASK_CHANNEL: self._fetcher.handle_notification,
            MESSAGE_CHANNEL: self._consumers.wake_queue,
        }
        self._listener = NotificationListener(database.url, database.settings, handlers)
        self._start_fields = {
            "queues": selector.queues + [consumer.queue for consumer in consumers],
            "tasks": sorted(self._tasks),
            "concurrency": concurrency,
        }
        self._stop_requested: asyncio.Event | None = None
        self._connect_parts(options)
        self._heartbeat.has_consumers = bool(consumers)  # messages do not end a long wait for the next tick

    def _create_child_pool(self, options: RuntimeOptions) -> ChildProcessPool | None:
        command = options.get("child_command")
        if not command:
            return None
        return ChildProcessPool(
            command,
            self.database,
            options.get("child_task_types", self._tasks),
            modules=options.get("child_modules", ()),
        )

    def _keep_spare_children(self) -> None:
        """Keep child processes ready if this worker serves tasks that always run in one."""
        pool = self._child_pool
        if pool is None or self._until != "stopped":
            return
        if any(task.process and name in pool.task_types for name, task in self._tasks.items()):
            pool.keep_spares(self._count_free_child_slots)

    def _count_free_child_slots(self) -> int:
        return self._concurrency - len(self._fetcher.running) if self._fetcher.claiming else 0

    def _connect_parts(self, options: RuntimeOptions) -> None:
        if self._child_pool is not None:
            self._child_pool.heartbeat = self._heartbeat
        self._fetcher.sink = self
        self._executor.on_waited_too_long = self._fetcher.stop_prefetch
        self._fetcher.measure_work = self._executor.measure_work
        self._fetcher.heartbeat_link = self._heartbeat.link
        self._heartbeat.link.on_answer_after_silence = self._fetcher.wake_up
        self._fetcher.listener_works = self._is_listener_working
        self._fetcher.on_command = self._heartbeat.on_command = self._handle_command
        self._fetcher.on_cancel = self._heartbeat.renew_now
        self._fetcher.on_maintenance = self._urgent_maintenance.notify
        self._fetcher.on_idle = self._handle_idle
        self._fetcher.remaining_claims = options.get("max_tasks")
        if self._until == "once" and self._fetcher.remaining_claims is None:
            self._fetcher.remaining_claims = options.get("concurrency", DEFAULT_CONCURRENCY)

    def _is_database_unreachable(self) -> bool:
        return isinstance(self._fetcher.last_error, DatabaseUnavailableError)

    def _is_listener_working(self) -> bool:
        return self._listener.is_healthy

    # Called by the fetcher

    def hold_leases(self, tasks: Sequence[LeasedTask], ended: Sequence[Lease], sent_at: float) -> None:
        """Send new and ended leases to the heartbeat, before the new tasks start."""
        choose_place = self._executor.choose_place
        self._heartbeat.update_leases([(claimed, choose_place(claimed)) for claimed in tasks], ended, sent_at)

    def start_attempts(self, tasks: Sequence[LeasedTask], sent_at: float) -> None:
        self._executor.start_attempts(tasks, sent_at)
        if tasks:
            self._heartbeat.ticks.end_long_wait()
        if self._until == "once" and tasks:
            self._fetcher.remaining_claims = 0
        if self._fetcher.remaining_claims is not None and self._fetcher.remaining_claims <= 0:
            self._start_draining()

    # From start to stop

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then release all leases and return."""
        tasks, state = self._tasks.values(), self.contexts.state
        try:
            async with open_lifespan(self._lifespan, tasks, state=state, stop=stop) as self.contexts.state:
                await self._run_until_stopped(stop)
        except StoppedBeforeStart:
            telemetry.emit("worker.stopped", worker=self.name, reason="stop requested during start")

    async def _run_until_stopped(self, stop: asyncio.Event) -> None:
        self._stop_requested = stop
        # Without the database, each consumer prepares its queue later, before it reads.
        with contextlib.suppress(DatabaseUnavailableError):
            await self._consumers.prepare_queues()
        self.contexts.start()
        self._heartbeat.start()
        self._listener.start()
        await self._heartbeat.wait_until_ready()
        if self._tasks:
            self._fetcher.start()
        self._consumers.start()
        self._maintenance.start()
        self._urgent_maintenance.start()
        self._alert_evaluation.start()
        self._database_restarter.start()
        self._keep_spare_children()
        telemetry.emit("worker.started", worker=self.name, **self._start_fields)
        try:
            await stop.wait()
        finally:
            await self._shut_down()
            telemetry.emit("worker.stopped", worker=self.name, reason="stop requested")

    def end_grace(self) -> None:
        """Release running attempts at once while the worker stops."""
        self._grace = timedelta(0)

    def _handle_command(self, command: WorkerCommand) -> None:
        """Handle a command that an operator sent through the database."""
        if command == "drain":
            self._start_draining()
        elif self._stop_requested is not None:
            self._stop_requested.set()

    def _start_draining(self) -> None:
        """Stop after all running attempts have ended, without a time limit."""
        self._grace = timedelta.max if self._grace else self._grace
        if self._stop_requested is not None:
            self._stop_requested.set()

    def _handle_idle(self) -> None:
        if self._until != "stopped" and not self._has_unfinished_work():
            self._start_draining()

    async def _shut_down(self) -> None:
        """Stop the worker: let attempts finish within the grace, release the others, send all outcomes."""
        self._fetcher.claiming = False
        self._executor.release_waiting_attempts()
        self._consumers.stop_reading()
        await self._maintenance.stop()
        await self._urgent_maintenance.stop()
        await self._alert_evaluation.stop()
        await self._database_restarter.stop()
        await self._listener.stop()
        await self._wait_until_idle(lambda: self._grace)
        self._consumers.release_messages()
        await self._wait_until_idle(lambda: ATTEMPT_RELEASE_TIMEOUT, self._release_attempts)
        await self.contexts.stop()
        await self._fetcher.stop()
        await self._consumers.stop()
        await self._mark_worker_stopped()
        if self._child_pool is not None:
            await self._child_pool.close()
        # Last: the heartbeat process releases the leases of stuck threads when this process is gone.
        await self._heartbeat.stop()
        self._threads.close()

    async def _mark_worker_stopped(self) -> None:
        with contextlib.suppress(HoldfastError, TimeoutError):
            async with asyncio.timeout(MARK_STOPPED_TIMEOUT_S), self.database.connection() as connection:
                await self._fetcher.release_unreceived_tasks(connection)
                await leases.mark_worker_stopped(connection, self.name)

    def _is_busy(self) -> bool:
        return bool(len(self._fetcher.running) or self._consumers.is_busy)

    def _has_unfinished_work(self) -> bool:
        """Whether attempts run, claimed tasks may still arrive, or outcomes are unconfirmed."""
        return bool(self._is_busy() or self._fetcher.requested_slots or len(self._outbox))

    async def _wait_until_idle(
        self, get_timeout: Callable[[], timedelta], on_check: Callable[[], None] = lambda: None
    ) -> None:
        """Wait until no attempt runs and every outcome is confirmed, or until the timeout.

        The timeout may change while this method waits.
        """
        started_at = time.monotonic()
        while self._has_unfinished_work():
            on_check()
            if time.monotonic() - started_at >= get_timeout().total_seconds():
                return
            self._fetcher.wake_up()
            self._consumers.wake_up()
            await asyncio.sleep(0.01)

    def _release_attempts(self) -> None:
        for attempt in self._fetcher.running.list_attempts():
            attempt.stop(STOP_REASON_RELEASED)

    # For operators. Safe to call from any thread.

    def get_seconds_since_loop_ran(self) -> float:
        return self._heartbeat.seconds_since_loop_ran

    @property
    def loop_lag_s(self) -> float:
        return self._heartbeat.loop_lag_s

    def find_unready_reason(self) -> str | None:
        """Return the reason why the worker claims no tasks, or None if the worker is ready."""
        if self._stop_requested is None:
            return "starting"
        if self._stop_requested.is_set():
            return "stopping"
        if self._fetcher.last_error is None:
            return None
        return "the database is unreachable" if self._is_database_unreachable() else "claiming tasks fails"

    @property
    def unconfirmed_outcome_count(self) -> int:
        return len(self._outbox)

    def build_status(self) -> dict[str, Any]:
        """Return the status of this worker that `holdfast workers` shows."""
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": __version__,
            "slots": self._start_fields["concurrency"],
            "listening": self.database.settings.listen != "off",
            "channel": self._listener.own_channel,
            "running": len(self._fetcher.running) - self._executor.waiting_count,
            "ended": self._executor.ended_count,
            "loop_lag_ms": round(self._heartbeat.loop_lag_s * 1000),
            "blocked": self._heartbeat.blocked_loop_report,
            "rss": _get_resident_bytes(),
        }


def _get_resident_bytes() -> int | None:
    """Return the resident memory of this process, or None where the system does not report it."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123  (called often, from a thread)
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None
