"""The executing side: a worker claims tasks for its free slots, runs them, and hands their outcomes in.

It keeps nothing that matters. Its parts: the fetcher decides when to ask and for how many, the executor
turns one task into one verdict, the outbox holds verdicts until the database has answered, the heartbeat
keeps the leases alive, upkeep does its share of the housekeeping. Messages for consumers have a loop per
consumer and no part in the fetcher.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast import telemetry
from holdfast.engine.connection import Database
from holdfast.engine.leases import Claimed, Outcome
from holdfast.engine.listen import MESSAGES, TASKS, Listener
from holdfast.worker.consumers import AnyConsumer, Consumers
from holdfast.worker.context import Context
from holdfast.worker.duties import Upkeep
from holdfast.worker.executor import AnyTask, Verdict, execute
from holdfast.worker.fetcher import Fetcher
from holdfast.worker.files import Files
from holdfast.worker.heartbeat import Heartbeat
from holdfast.worker.outbox import Outbox
from holdfast.worker.running import Attempt
from holdfast.worker.visibility import Visibility

__all__ = ["Worker"]

RELEASE = timedelta(seconds=5)  # for what was stopped to come back and be handed in


class Worker:
    def __init__(
        self,
        database: Database,
        tasks: Mapping[str, AnyTask],
        consumers: Sequence[AnyConsumer] = (),
        *,
        queues: Sequence[str] = (),
        concurrency: int = 10,
        grace: timedelta = timedelta(seconds=25),
        state: Any = None,
    ) -> None:
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._tasks = dict(tasks)
        self._state = state
        self._grace = grace
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="task")
        self._outbox = Outbox()
        queues = list(queues) or sorted({task.queue for task in tasks.values()})
        self._fetcher = Fetcher(
            database, self.name, queues, sorted(self._tasks), concurrency, self._outbox, self._launch
        )
        self._consumers = Consumers(database, consumers, lambda: self._listener.healthy)
        self._visibility = Visibility(database.url, database.settings, self._consumers.deliveries)
        self._heartbeat = Heartbeat(
            database.url, database.settings, self.name, self._fetcher.running.all, self._visibility.keep
        )
        self._files = Files(database)
        self._upkeep = Upkeep(database, self._is_busy, self._files.keep_house)
        heard = {TASKS: self._fetcher.heard, MESSAGES: self._consumers.heard}
        self._listener = Listener(database.url, database.settings, heard)
        self._fetcher.hears = lambda: self._listener.healthy
        self._about = {
            "queues": queues + [consumer.queue for consumer in consumers],
            "tasks": sorted(self._tasks),
            "concurrency": concurrency,
        }

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then give everything back and return."""
        await self._consumers.prepare()
        self._visibility.worker_loop = asyncio.get_running_loop()
        self._heartbeat.start()
        self._listener.start()
        if self._tasks:
            self._fetcher.start()
        self._consumers.start()
        self._upkeep.start()
        telemetry.emit("worker.started", worker=self.name, **self._about)
        try:
            await stop.wait()
        finally:
            await self._shut_down()
            telemetry.emit("worker.stopped", worker=self.name, reason="asked to")

    def hurry(self) -> None:
        """Asked to stop a second time: release at once what still runs."""
        self._grace = timedelta(0)

    async def _shut_down(self) -> None:
        """Claim no more, let what runs finish within the grace, release the rest, hand everything in."""
        self._fetcher.claiming = False
        self._consumers.stop_reading()
        await self._upkeep.stop()
        await self._listener.stop()
        await self._settled(lambda: self._grace)
        for attempt in self._fetcher.running.all():
            attempt.stop("released")
        self._consumers.release()
        await self._settled(lambda: RELEASE)
        await self._fetcher.stop()
        await self._consumers.stop()
        await self._heartbeat.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _is_busy(self) -> bool:
        return bool(len(self._fetcher.running) or self._consumers.busy)

    async def _settled(self, within: Callable[[], timedelta]) -> None:
        """Until nothing runs and every outcome was accepted, or the time is over."""
        began = time.monotonic()
        while self._is_busy() or len(self._outbox):
            if time.monotonic() - began >= within().total_seconds():
                return
            self._fetcher.ring()
            self._consumers.ring()
            await asyncio.sleep(0.01)

    def _launch(self, claimed: Claimed) -> None:
        deadline = datetime.now(UTC) + timedelta(seconds=claimed.timeout_s)
        context = Context(
            task_id=str(claimed.id),
            job_id=str(claimed.job_id or claimed.id),
            attempt=claimed.attempt,
            deadline=deadline,
            state=self._state,
            lease=claimed,
            files=self._files,
        )
        runner = asyncio.create_task(self._attempt(claimed, context), name=f"task {claimed.type}")
        attempt = Attempt(claimed, context, runner)
        self._fetcher.running.add(attempt)
        runner.add_done_callback(lambda _: self._fetcher.running.remove(attempt))

    async def _attempt(self, claimed: Claimed, context: Context) -> None:
        began = time.monotonic()
        told = {
            "task": claimed.id,
            "job": claimed.job_id or claimed.id,
            "name": claimed.type,
            "queue": claimed.queue,
            "attempt": claimed.attempt,
        }
        telemetry.emit("task.started", **told)
        verdict: Verdict | None
        try:
            verdict = await execute(
                self._tasks[claimed.type], claimed.args, claimed.parents, context, self._threads
            )
        except asyncio.CancelledError as stopped:
            # Released at shutdown: nobody is charged. Lost or cancelled: there is nothing left to say.
            verdict = Verdict("release", None, str(stopped)) if "released" in stopped.args else None
        outcome = verdict.kind if verdict else "stopped"
        seconds = time.monotonic() - began
        telemetry.emit(
            "task.finished",
            **told,
            outcome=outcome,
            seconds=seconds,
            error=verdict.error if verdict else None,
        )
        if verdict:
            self._outbox.put(
                Outcome(
                    id=claimed.id,
                    attempt=claimed.attempt,
                    nonce=claimed.nonce,
                    kind=verdict.kind,
                    body=verdict.body,
                )
            )
