"""The inside of a child process: imports the application, then runs one task at a time for its worker.

The pipe is read by a thread, so that an order to stop arrives whatever the task does, and the end of the
worker ends this process at once. What a task says goes out as it is said: after a crash the last lines are
with the worker. Files are stored from here; what else the task asks of the database is asked through the
worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast
from uuid import UUID

import msgspec

from holdfast.definitions.context import LogLevel
from holdfast.definitions.lifespan import Lifespan
from holdfast.engine.connection import Database
from holdfast.engine.leases import Lease
from holdfast.model import Json
from holdfast.settings import Secret, load
from holdfast.tracing import Tracing, tracing_of
from holdfast.worker import sentry
from holdfast.worker.context import Context, current
from holdfast.worker.executor import AnyTask, Verdict, execute
from holdfast.worker.files import Files
from holdfast.worker.heartbeat_wire import Frames, Kind, frame
from holdfast.worker.isolation_wire import Begin, Ended, Given, Line, Question, Reply
from holdfast.worker.lifespan import started
from holdfast.worker.logs import captured
from holdfast.worker.threads import Threads

PROGRESS_SECONDS: Final = 0.1
PR_SET_PDEATHSIG: Final = 1


class Pipe:
    """To the worker, from any thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._sending = threading.Lock()
        self._frames = Frames()

    def say(self, kind: Kind | bytes, message: msgspec.Struct | None = None) -> None:
        body = b"" if message is None else msgspec.msgpack.encode(message)
        with self._sending:
            self._socket.sendall(frame(cast("Kind", kind), body))

    def read(self) -> list[tuple[bytes, bytes]]:
        """Waits for what comes; ends the process when nothing can come any more."""
        while True:
            received = self._socket.recv(1 << 20)
            if not received:
                os._exit(0)
            found = self._frames.feed(received)
            if found:
                return found


class PipeDesk:
    """Asks the worker, which asks the database."""

    def __init__(self, pipe: Pipe, loop: asyncio.AbstractEventLoop) -> None:
        self._pipe = pipe
        self.loop = loop
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._number = 0

    async def _ask(self, method: str, *args: object) -> Any:
        self._number += 1
        answer = self._asked[self._number] = self.loop.create_future()
        self._pipe.say(b"D", Question(number=self._number, method=method, args=list(args)))
        return await answer

    def answered(self, reply: Reply) -> None:
        answer = self._asked.pop(reply.number, None)
        if answer is None or answer.done():
            return
        if reply.problem is not None:
            answer.set_exception(reply.problem.raised())
        else:
            answer.set_result(reply.value)

    async def report(self, _: Lease, percent: float | None, phase: str | None, message: str | None) -> None:
        await self._ask("report", percent, phase, message)

    async def get_steps(self, _: Lease) -> dict[str, Json]:
        steps: dict[str, Json] = await self._ask("get_steps")
        return steps

    async def save_step(self, _: Lease, name: str, value: bytes, files: Sequence[str]) -> Json:
        return await self._ask("save_step", name, value, list(files))

    async def add_tasks(self, _: Lease, tasks: bytes) -> dict[str, UUID]:
        found: dict[str, str] = await self._ask("add_tasks", tasks)
        return {name: UUID(text) for name, text in found.items()}

    async def submit(self, _: Lease, job: bytes) -> UUID:
        return UUID(await self._ask("submit", job))


@dataclass(eq=False, slots=True)
class ChildContext(Context):
    """Says everything at once, because this process may not live to say it later."""

    pipe: Pipe | None = None
    said_at: float = 0.0

    def progress(
        self,
        done: float | None = None,
        total: float = 100,
        *,
        phase: str | None = None,
        message: str | None = None,
    ) -> None:
        Context.progress(self, done, total, phase=phase, message=message)
        if time.monotonic() >= self.said_at + PROGRESS_SECONDS:
            self.send_progress()

    def complete(self, on: object, output: object = None) -> Awaitable[None]:
        answer = Context.complete(self, on, output)
        if self.pipe is not None:
            self.pipe.say(b"K")
        return answer

    def send_progress(self) -> None:
        report = self.unreported()
        if report is not None and self.pipe is not None:
            self.said_at = time.monotonic()
            self.pipe.say(b"P", report)
            self.reported(report)

    def log(self, message: str, /, *, level: LogLevel = "info", **fields: Any) -> None:
        if self.pipe is not None:
            kept = {name: value if _simple(value) else str(value) for name, value in fields.items()}
            self.pipe.say(b"L", Line(level=level, message=str(message)[:10_000], fields=kept))


def _simple(value: object) -> bool:
    return (
        value is None or isinstance(value, (bool, float, str)) or (type(value) is int and abs(value) < 2**63)
    )


class ChildProcess:
    def __init__(self, pipe: Pipe, tasks: Mapping[str, AnyTask], span: Lifespan[Any] | None) -> None:
        self._pipe = pipe
        self._tasks = tasks
        self._span = span
        self._loop = asyncio.get_running_loop()
        self._desk = PipeDesk(pipe, self._loop)
        self._orders: asyncio.Queue[Given | None] = asyncio.Queue()
        self._threads = Threads(1000)
        self._context: ChildContext | None = None
        self._tracing: Tracing | None = None
        self._runner: asyncio.Task[Verdict] | None = None

    async def run(self, begin: Begin) -> None:
        settings = load(begin.settings, environ={})
        self._tracing = tracing_of(settings.tracing)
        sentry.report_to(settings.sentry_dsn)
        async with (
            started(self._span, self._tasks.values()) as state,
            Database(Secret(begin.url), settings) as database,
        ):
            files = Files(database)
            with captured(settings.capture_logs):
                threading.Thread(target=self._listen, name="orders", daemon=True).start()
                self._pipe.say(b"O")
                while (given := await self._orders.get()) is not None:
                    await self._perform(given, state, files)

    async def _perform(self, given: Given, state: Any, files: Files) -> None:
        claimed = given.claimed
        context = self._context = ChildContext(
            task_id=str(claimed.id),
            job_id=str(claimed.job_id or claimed.id),
            attempt=claimed.attempt,
            deadline=given.deadline,
            state=state,
            owner=claimed.owner,
            name=claimed.name or claimed.type,
            lease=claimed,
            desk=self._desk,
            files=files,
            pipe=self._pipe,
        )
        current.set(context)
        task = self._tasks[claimed.type]
        with self._tracing.attached(claimed.trace) if self._tracing else contextlib.nullcontext():
            self._runner = asyncio.create_task(
                execute(task, claimed.args, claimed.parents, context, self._threads)
            )
        try:
            verdict = await self._runner
            ended = Ended(
                kind=verdict.kind, body=verdict.body, error=verdict.error, completed=context.completed
            )
        except (asyncio.CancelledError, TimeoutError):
            ended = Ended(kind=None)
        finally:
            self._runner = self._context = None
        context.send_progress()
        # A plain function that was stopped may go on in its thread, which only the end of the process ends.
        leaving = context.cancelled and not task.is_async
        self._pipe.say(b"V", msgspec.structs.replace(ended, leaving=leaving))
        if leaving:
            os._exit(0)

    def _listen(self) -> None:
        """In a thread."""
        while True:
            for kind, body in self._pipe.read():
                if kind == b"X" and (context := self._context) is not None:
                    context.stop(body.decode())  # plain code sees it even while the loop is blocked
                self._loop.call_soon_threadsafe(self._hear, kind, body)

    def _hear(self, kind: bytes, body: bytes) -> None:
        if kind == b"T":
            self._orders.put_nowait(msgspec.msgpack.decode(body, type=Given))
        elif kind == b"A":
            self._desk.answered(msgspec.msgpack.decode(body, type=Reply))
        elif kind == b"X" and self._runner is not None:
            self._runner.cancel(body.decode())
        elif kind == b"Q":
            self._orders.put_nowait(None)


def die_with(parent: int) -> None:
    """However the worker ends, so do we: told by the system where it can, else by the end of the pipe."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def begin(number: int) -> tuple[Pipe, Begin]:
    """Before the application is imported, so that nothing in it can outlive the worker."""
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the worker, which tells us what to do
    pipe = Pipe(socket.socket(fileno=number))
    (kind, body), *_ = pipe.read()
    if kind != b"S":
        raise SystemExit(2)
    start = msgspec.msgpack.decode(body, type=Begin)
    die_with(start.worker)
    return pipe, start


def serve(pipe: Pipe, start: Begin, tasks: Mapping[str, AnyTask], span: Lifespan[Any] | None) -> None:
    async def work() -> None:
        await ChildProcess(pipe, tasks, span).run(start)

    asyncio.run(work())
    sys.stdout.flush()
    os._exit(0)  # threads that still run something nobody wants are not waited for
