"""The inside of a child process: import the application, then run one task at a time for the worker.

A thread reads the pipe, so that a stop request arrives while the task blocks the event loop, and so that this
process exits at once when the worker does. Log lines and progress are sent immediately: after a crash the
worker has the last lines. Files are stored from here; every other request to the database goes through the
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
from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast.definitions.context_types import LogLevel
from holdfast.definitions.lifespan import Lifespan
from holdfast.engine.connection import Database
from holdfast.engine.leases import Lease
from holdfast.errors import HoldfastError
from holdfast.model import Json
from holdfast.settings import Secret, load_settings
from holdfast.tracing import Tracing, get_tracing
from holdfast.worker import sentry
from holdfast.worker.attempts import Attempt
from holdfast.worker.child_modules import import_definitions
from holdfast.worker.child_protocol import (
    ChildLogLine,
    ChildStartMessage,
    EngineCallRequest,
    EngineCallResponse,
    TaskAssignment,
    TaskReport,
)
from holdfast.worker.child_signals import ignore_stop_signals
from holdfast.worker.context import TaskContext, current
from holdfast.worker.context_factory import get_context_fields
from holdfast.worker.files import TaskFiles
from holdfast.worker.framing import FrameDecoder, encode_frame
from holdfast.worker.lifespan import open_lifespan
from holdfast.worker.log_writer import capture_log_records
from holdfast.worker.outcomes import AnyTask, TaskOutcome, emit_exception_event
from holdfast.worker.runner import run_task
from holdfast.worker.thread_pool import TaskThreadPool

MIN_PROGRESS_INTERVAL_S: Final = 0.1
MAX_FORWARDED_LOG_CHARS: Final = 10_000
PR_SET_PDEATHSIG: Final = 1


class WorkerPipe:
    """A child process's connection to its worker. Any thread may send."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._sending = threading.Lock()
        self._frames = FrameDecoder()

    def send(self, kind: bytes, message: msgspec.Struct | None = None) -> None:
        body = b"" if message is None else msgspec.msgpack.encode(message)
        with self._sending:
            self._socket.sendall(encode_frame(kind, body))

    def receive(self) -> list[tuple[bytes, bytes]]:
        """Wait for messages from the worker and return them. Exit the process if the worker is gone."""
        while True:
            received = self._socket.recv(1 << 20)
            if not received:
                os._exit(0)
            messages = self._frames.feed(received)
            if messages:
                return messages


class PipeGateway:
    """The engine gateway in a child process: sends requests to the worker, which calls the engine."""

    def __init__(self, pipe: WorkerPipe, loop: asyncio.AbstractEventLoop) -> None:
        self._pipe = pipe
        self.loop = loop
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._last_number = 0

    async def _send_request(self, method: str, *args: object) -> Any:
        self._last_number += 1
        response = self._pending[self._last_number] = self.loop.create_future()
        self._pipe.send(b"D", EngineCallRequest(number=self._last_number, method=method, args=list(args)))
        return await response

    def handle_gateway_response(self, response: EngineCallResponse) -> None:
        pending = self._pending.pop(response.number, None)
        if pending is None or pending.done():
            return
        if response.error is not None:
            pending.set_exception(response.error.to_exception())
        else:
            pending.set_result(response.value)

    async def report_progress(
        self, _: Lease, percent: float | None, phase: str | None, message: str | None
    ) -> None:
        await self._send_request("report_progress", percent, phase, message)

    async def get_step_results(self, _: Lease) -> dict[str, Json]:
        steps: dict[str, Json] = await self._send_request("get_step_results")
        return steps

    async def save_step_result(self, _: Lease, name: str, value: bytes, files: Sequence[str]) -> Json:
        return await self._send_request("save_step_result", name, value, list(files))

    async def add_child_tasks(self, _: Lease, tasks: bytes) -> dict[str, UUID]:
        ids: dict[str, str] = await self._send_request("add_child_tasks", tasks)
        return {name: UUID(text) for name, text in ids.items()}

    async def submit_detached_job(self, _: Lease, job: bytes) -> UUID:
        return UUID(await self._send_request("submit_detached_job", job))


class ChildProcessContext(TaskContext):
    """The task context in a child process: sends progress and log lines to the worker at once.

    They are not buffered, because the child process may crash.
    """

    __slots__ = ("_pipe", "_progress_sent_at")

    def __init__(self, *, pipe: WorkerPipe, **fields: Any) -> None:
        super().__init__(**fields)
        self._pipe = pipe
        self._progress_sent_at = 0.0

    def _update_progress(
        self, done: float | None, total: float, phase: str | None, message: str | None
    ) -> None:
        super()._update_progress(done, total, phase, message)
        if time.monotonic() >= self._progress_sent_at + MIN_PROGRESS_INTERVAL_S:
            self.send_progress()

    def send_progress(self) -> None:
        progress = self.get_unreported_progress()
        if progress is not None:
            self._progress_sent_at = time.monotonic()
            self._pipe.send(b"P", progress)
            self.mark_reported(progress)

    def _complete_task(self, on: object, output: object) -> Awaitable[None]:
        completion = super()._complete_task(on, output)
        self._pipe.send(b"K")
        return completion

    def _append_log(self, message: str, level: LogLevel, fields: Mapping[str, Any]) -> None:
        values = {name: value if _is_msgpack_scalar(value) else str(value) for name, value in fields.items()}
        line = ChildLogLine(level=level, message=str(message)[:MAX_FORWARDED_LOG_CHARS], fields=values)
        self._pipe.send(b"L", line)


def _is_msgpack_scalar(value: object) -> bool:
    return (
        value is None or isinstance(value, (bool, float, str)) or (type(value) is int and abs(value) < 2**63)
    )


class ChildProcessTaskRunner:
    """Runs tasks in a child process, one at a time, as the worker assigns them."""

    def __init__(
        self, pipe: WorkerPipe, tasks: Mapping[str, AnyTask], lifespan: Lifespan[Any] | None
    ) -> None:
        self._pipe = pipe
        self._tasks = tasks
        self._lifespan = lifespan
        self._loop = asyncio.get_running_loop()
        self._gateway = PipeGateway(pipe, self._loop)
        self._assignments: asyncio.Queue[TaskAssignment | None] = asyncio.Queue()
        self._threads = TaskThreadPool(1)
        self._attempt: Attempt | None = None
        self._tracing: Tracing | None = None

    async def run(self, start: ChildStartMessage) -> None:
        settings = load_settings(start.settings, environ={})
        self._tracing = get_tracing(settings.tracing)
        sentry.start_error_reports(settings.sentry_dsn)
        async with (
            open_lifespan(self._lifespan, self._tasks.values()) as state,
            Database(Secret(start.url), settings) as database,
        ):
            files = TaskFiles(database)
            with capture_log_records(settings.capture_logs):
                threading.Thread(target=self._receive_messages, name="worker-pipe", daemon=True).start()
                self._pipe.send(b"O")
                while (assignment := await self._assignments.get()) is not None:
                    await self._run_assignment(assignment, state, files)

    async def _run_assignment(self, assignment: TaskAssignment, state: Any, files: TaskFiles) -> None:
        claimed = assignment.claimed
        context = ChildProcessContext(
            **get_context_fields(claimed),
            deadline=assignment.deadline,
            state=state,
            gateway=self._gateway,
            files=files,
            pipe=self._pipe,
        )
        now = time.monotonic()
        attempt = Attempt(claimed, self._tasks[claimed.type], context, started_at=now, renewed_at=now)
        current.set(context)
        with self._tracing.continue_trace(claimed.trace) if self._tracing else contextlib.nullcontext():
            attempt.runner = asyncio.create_task(run_task(attempt, self._threads, self._report_begin))
        self._attempt = attempt
        try:
            outcome: TaskOutcome | None = await attempt.runner
        finally:
            attempt.ended = True
            self._attempt = None
        emit_exception_event(attempt, outcome)
        context.send_progress()
        self._pipe.send(b"V", _build_task_report(outcome, completed=context.completed))

    def _report_begin(self) -> None:
        """Tell the worker that the task's own code begins: from here on a crash may be its fault."""
        self._pipe.send(b"B")

    def _receive_messages(self) -> None:
        """Receive messages from the worker, in a thread."""
        while True:
            for kind, body in self._pipe.receive():
                attempt = self._attempt
                if kind == b"X" and attempt is not None and attempt.mark_stopped(body.decode()):
                    self._loop.call_soon_threadsafe(attempt.interrupt_code)
                elif kind != b"X":
                    self._loop.call_soon_threadsafe(self._handle_message, kind, body)

    def _handle_message(self, kind: bytes, body: bytes) -> None:
        if kind == b"T":
            self._assignments.put_nowait(msgspec.msgpack.decode(body, type=TaskAssignment))
        elif kind == b"A":
            self._gateway.handle_gateway_response(msgspec.msgpack.decode(body, type=EngineCallResponse))
        elif kind == b"Q":
            self._assignments.put_nowait(None)


def _build_task_report(outcome: TaskOutcome | None, *, completed: bool) -> TaskReport:
    if outcome is None:
        return TaskReport(completed=completed)
    return TaskReport(kind=outcome.kind, body=outcome.body, error=outcome.error, completed=completed)


def exit_with_worker(worker_pid: int) -> None:
    """Make this child process exit when its worker exits.

    The kernel sends a signal where it supports that. Elsewhere the end of the pipe ends the process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != worker_pid:
        os._exit(1)


def connect_to_worker(descriptor: int) -> tuple[WorkerPipe, ChildStartMessage]:
    """Connect this child process to its worker. Return the pipe and the start message.

    This happens before the application is imported, so that nothing in it can outlive the worker.
    """
    faulthandler.enable()
    ignore_stop_signals()
    pipe = WorkerPipe(socket.socket(fileno=descriptor))
    (kind, body), *_ = pipe.receive()
    if kind != b"S":
        raise SystemExit(2)
    start = msgspec.msgpack.decode(body, type=ChildStartMessage)
    exit_with_worker(start.worker_pid)
    return pipe, start


def run_child_process(
    pipe: WorkerPipe, start: ChildStartMessage, tasks: Mapping[str, AnyTask], lifespan: Lifespan[Any] | None
) -> None:
    """Run tasks in this child process until the worker ends the process."""

    async def run_task_runner() -> None:
        await ChildProcessTaskRunner(pipe, tasks, lifespan).run(start)

    asyncio.run(run_task_runner())
    sys.stdout.flush()
    os._exit(0)  # do not wait for threads whose results nobody needs


def main() -> None:
    """Run a child process. The argument is the descriptor of the socket to the worker."""
    pipe, start = connect_to_worker(int(sys.argv[1]))
    sys.path[:] = list(dict.fromkeys([*start.import_path, *sys.path]))
    try:
        tasks, lifespan = import_definitions(start.modules)
        run_child_process(pipe, start, tasks, lifespan)
    except HoldfastError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
