"""The executing side: a worker claims tasks for its free slots, runs them, and hands their outcomes in.

It keeps nothing that matters. Its parts: the fetcher decides when to ask and for how many, the attempts turn
each task into one verdict, the outbox holds verdicts until the database has answered, the heartbeat keeps the
leases alive from a process of its own, upkeep does its share of the housekeeping. Messages for consumers have
a loop per consumer and no part in the fetcher.
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
from typing import Any, Literal, TypedDict, Unpack
from uuid import UUID

from holdfast import telemetry
from holdfast.engine import leases
from holdfast.engine.connection import Database
from holdfast.engine.leases import Claimed, Command
from holdfast.engine.listen import MESSAGES, TASKS, Listener
from holdfast.errors import HoldfastError
from holdfast.version import __version__
from holdfast.worker.attempts import Attempts
from holdfast.worker.contexts import Contexts
from holdfast.worker.duties import Reviver, Tending, Upkeep
from holdfast.worker.executor import AnyTask
from holdfast.worker.fetcher import Fetcher
from holdfast.worker.files import Files
from holdfast.worker.heartbeat import Heartbeat
from holdfast.worker.isolation import Children
from holdfast.worker.lifespan import Lifespan, StoppedEarly, started
from holdfast.worker.messages.consumers import AnyConsumer, Consumers
from holdfast.worker.outbox import Outbox
from holdfast.worker.running import RELEASED
from holdfast.worker.shares import Share, Shares
from holdfast.worker.threads import Threads

__all__ = ["Options", "Share", "Worker"]

SLOTS = 10
RELEASE = timedelta(seconds=5)  # for what was stopped to come back and be handed in
LEAVE_SECONDS = 2.0


class Options(TypedDict, total=False):
    """How a worker works.

    `child` is the command that starts a child process for tasks, `child_types` what it can run. `revive` is
    called in a thread, again and again while the database is away: it may be ours to start.
    """

    queues: Sequence[str | Share]
    concurrency: int
    grace: timedelta
    state: Any
    lifespan: Lifespan[Any] | None
    child: Sequence[str] | None
    child_types: Collection[str]
    revive: Callable[[], object] | None
    until: Literal["stopped", "drained", "once"]
    max_jobs: int | None


class Worker:
    def __init__(
        self,
        database: Database,
        tasks: Mapping[str, AnyTask],
        consumers: Sequence[AnyConsumer] = (),
        **options: Unpack[Options],
    ) -> None:
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._database = database
        self._tasks = dict(tasks)
        self._grace = options.get("grace", timedelta(seconds=25))
        self._until = options.get("until", "stopped")
        self._lifespan = options.get("lifespan")
        concurrency = options.get("concurrency", SLOTS)
        shares = Shares(options.get("queues") or sorted({task.queue for task in tasks.values()}))
        self._outbox = Outbox()
        self._fetcher = Fetcher(database, self.name, shares, sorted(self._tasks), concurrency, self._outbox)
        self._threads = Threads(concurrency)
        files = Files(database)
        self.contexts = Contexts(database, state=options.get("state"), files=files)
        child = options.get("child")
        known = options.get("child_types", self._tasks)
        self._children = Children(child, database, self._line, known) if child else None
        self._attempts = Attempts(
            self._tasks, self._fetcher.running, self._outbox, self._threads, self._children, self.contexts
        )
        self._consumers = Consumers(database, consumers, lambda: self._listener.healthy)
        self._heartbeat = Heartbeat(
            database.url,
            database.settings,
            self.name,
            self._fetcher.running,
            self._consumers.visibility,
            self.about,
        )
        self._upkeep = Upkeep(database, self._is_busy, files.keep_house)
        self._tending = Tending(database, lambda: self._listener.healthy)
        self._reviver = Reviver(options.get("revive"), lambda: self._fetcher.failing)
        heard = {TASKS: self._fetcher.heard, MESSAGES: self._consumers.heard}
        self._listener = Listener(database.url, database.settings, heard)
        self._started = {
            "queues": shares.queues + [consumer.queue for consumer in consumers],
            "tasks": sorted(self._tasks),
            "concurrency": concurrency,
        }
        self._stop: asyncio.Event | None = None
        self._connect_parts(options)

    def _connect_parts(self, options: Options) -> None:
        self._fetcher.taker = self
        self._fetcher.hears = lambda: self._listener.healthy
        self._fetcher.on_command = self._heartbeat.commanded = self._obey
        self._fetcher.on_cancel = self._heartbeat.look_now
        self._fetcher.on_upkeep = self._tending.ring
        self._fetcher.on_nothing = self._found_nothing
        self._fetcher.budget = options.get("max_jobs")
        if self._until == "once" and self._fetcher.budget is None:
            self._fetcher.budget = options.get("concurrency", SLOTS)

    # What the fetcher hands over

    def hold(self, tasks: Sequence[Claimed], ended: Sequence[UUID], asked_at: float) -> None:
        """Leases are known to the heartbeat before their tasks start."""
        isolated = self._attempts.isolated
        self._heartbeat.hold([(claimed, isolated(claimed)) for claimed in tasks], ended, asked_at)

    def launch(self, tasks: Sequence[Claimed], asked_at: float) -> None:
        self._attempts.launch(tasks, asked_at)
        if self._until == "once" and tasks:
            self._fetcher.budget = 0
        if self._fetcher.budget is not None and self._fetcher.budget <= 0:
            self._finish()

    # From start to stop

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then give everything back and return."""
        tasks, state = self._tasks.values(), self.contexts.state
        try:
            async with started(self._lifespan, tasks, state=state, stop=stop) as self.contexts.state:
                await self._work(stop)
        except StoppedEarly:
            telemetry.emit("worker.stopped", worker=self.name, reason="asked to before it had started")

    async def _work(self, stop: asyncio.Event) -> None:
        self._stop = stop
        await self._consumers.prepare()
        self.contexts.start()
        self._heartbeat.start()
        self._listener.start()
        await self._heartbeat.ready()
        if self._tasks:
            self._fetcher.start()
        self._consumers.start()
        self._upkeep.start()
        self._tending.start()
        self._reviver.start()
        telemetry.emit("worker.started", worker=self.name, **self._started)
        try:
            await stop.wait()
        finally:
            await self._shut_down()
            telemetry.emit("worker.stopped", worker=self.name, reason="asked to")

    def hurry(self) -> None:
        """Asked to stop a second time: release at once what still runs."""
        self._grace = timedelta(0)

    def _obey(self, command: Command) -> None:
        """Told by somebody through the database."""
        if command == "drain":
            self._finish()
        elif self._stop is not None:
            self._stop.set()

    def _finish(self) -> None:
        """Claim no more; what runs is finished, however long it takes."""
        self._grace = timedelta.max if self._grace else self._grace
        if self._stop is not None:
            self._stop.set()

    def _found_nothing(self) -> None:
        if self._until != "stopped" and not self._has_something():
            self._finish()

    async def _shut_down(self) -> None:
        """Claim no more, let what runs finish within the grace, release the rest, hand everything in."""
        self._fetcher.claiming = False
        self._consumers.stop_reading()
        await self._upkeep.stop()
        await self._tending.stop()
        await self._reviver.stop()
        await self._listener.stop()
        await self._settled(lambda: self._grace)
        self._consumers.release()
        await self._settled(lambda: RELEASE, self._release)
        await self.contexts.stop()
        await self._fetcher.stop()
        await self._consumers.stop()
        await self._leave()
        if self._children is not None:
            await self._children.close()
        # Last: what threads that cannot be stopped still hold is released when this process is gone.
        await self._heartbeat.stop()
        self._threads.close()

    async def _leave(self) -> None:
        with contextlib.suppress(HoldfastError, TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS), self._database.connection() as connection:
                await self._fetcher.give_back(connection)
                await leases.leave_worker(connection, self.name)

    def _is_busy(self) -> bool:
        return bool(len(self._fetcher.running) or self._consumers.busy)

    def _has_something(self) -> bool:
        """That runs, is on its way here, or is to be handed in."""
        return bool(self._is_busy() or self._fetcher.asked or len(self._outbox))

    async def _settled(
        self, within: Callable[[], timedelta], each_time: Callable[[], None] = lambda: None
    ) -> None:
        """Until nothing is left and every outcome was accepted, or the time is over."""
        began = time.monotonic()
        while self._has_something():
            each_time()
            if time.monotonic() - began >= within().total_seconds():
                return
            self._fetcher.ring()
            self._consumers.ring()
            await asyncio.sleep(0.01)

    def _release(self) -> None:
        for attempt in self._fetcher.running.all():
            attempt.stop(RELEASED)

    # What people see

    def late(self) -> float:
        return self._heartbeat.late

    @property
    def lag(self) -> float:
        return self._heartbeat.lag

    def unready(self) -> str | None:
        """Why no work would be taken now. From any thread."""
        if self._stop is None:
            return "starting"
        if self._stop.is_set():
            return "stopping"
        return "the database is away" if self._fetcher.failing else None

    @property
    def outbox_depth(self) -> int:
        return len(self._outbox)

    def _line(self) -> int | None:
        return self._heartbeat.line

    def about(self) -> dict[str, Any]:
        """From any thread."""
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": __version__,
            "slots": self._started["concurrency"],
            "running": len(self._fetcher.running),
            "ended": self._attempts.ended,
            "loop_lag_ms": round(self._heartbeat.lag * 1000),
            "blocked": self._heartbeat.blocked,
            "rss": _resident(),
        }


def _resident() -> int | None:
    """Bytes of memory this process holds; None where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123  (read from a thread, often)
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None
