"""One child process as its worker sees it: start it, give it tasks, answer its requests, watch it, end it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, cast

import msgspec

from holdfast import telemetry
from holdfast.engine.connection import Database
from holdfast.model import Progress
from holdfast.settings import Settings
from holdfast.worker.attempts import (
    STOP_REASON_RELEASED,
    STOP_REASON_TIME_LIMIT,
    STOP_REASON_UNRENEWED,
    Attempt,
)
from holdfast.worker.child_death import ChildDiedError, describe_exit
from holdfast.worker.child_protocol import (
    ChildLogLine,
    ChildStartMessage,
    EngineCallRequest,
    EngineCallResponse,
    TaskAssignment,
    TaskReport,
    TransferredError,
    convert_ids_to_text,
)
from holdfast.worker.context import TaskContext
from holdfast.worker.framing import FrameDecoder, encode_frame
from holdfast.worker.lease_guard import ChildDeadline, LeaseGuard
from holdfast.worker.memory import measure_non_file_memory
from holdfast.worker.outcomes import TaskOutcome

CHILD_START_TIMEOUT_S: Final = 120.0
CHILD_EXIT_TIMEOUT_S: Final = 5.0
CHILD_MEMORY_CHECK_INTERVAL_S: Final = 0.1
LAST_LINES_TIMEOUT_S: Final = 0.2
MAX_CHILD_OUTPUT_LINES: Final = 60
# How long the code in a child may take to stop by itself before the child is killed, by stop reason. After a
# lost lease it has no time at all, because another worker may already run the task.
STOP_GRACE_BY_REASON_S: Final = {
    STOP_REASON_TIME_LIMIT: 1.0,
    "cancelled": 2.0,
    STOP_REASON_RELEASED: 3.0,
    STOP_REASON_UNRENEWED: 0.5,
}
ALLOWED_GATEWAY_METHODS: Final = frozenset(
    {"report_progress", "get_step_results", "save_step_result", "add_child_tasks", "submit_detached_job"}
)


class ChildProcess:
    """A child process of the worker that runs one task at a time."""

    def __init__(
        self,
        command: Sequence[str],
        database: Database,
        heartbeat_fd: int | None,
        guard: LeaseGuard,
        *,
        modules: Sequence[str] = (),
        on_started: Callable[[int], None] = lambda _: None,
        on_ended: Callable[[ChildProcess], None] = lambda _: None,
    ) -> None:
        self._command = command
        self._modules = modules
        self._database = database
        self._heartbeat_fd = heartbeat_fd
        self._guard = guard
        self._on_started = on_started
        self._on_ended = on_ended
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._frames = FrameDecoder()
        self._lines: deque[str] = deque(maxlen=MAX_CHILD_OUTPUT_LINES)
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._exit_code: asyncio.Future[int] = self._loop.create_future()
        self._deadline: ChildDeadline | None = None
        self._report: asyncio.Future[TaskReport] | None = None
        self._attempt: Attempt | None = None
        self._begun = False  # the task's code has begun
        self._lease_expired = False  # the lease guard ended the process
        self._requests: set[asyncio.Task[None]] = set()
        self._kill_timer: asyncio.TimerHandle | None = None
        self._peak_bytes = 0
        self._exceeded_bytes: int | None = None
        self.task_count = 0

    @property
    def is_alive(self) -> bool:
        return not self._exit_code.done()

    @property
    def pid(self) -> int:
        return cast("subprocess.Popen[bytes]", self._process).pid

    async def start(self) -> None:
        """Start the child process and wait until the application is imported and its lifespan is open.

        Raises ChildDiedError when it exits or takes too long.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        inherited = [theirs.fileno()] + ([self._heartbeat_fd] if self._heartbeat_fd is not None else [])
        with theirs:
            self._process = subprocess.Popen(  # noqa: ASYNC220  (takes milliseconds; wait4 reports the memory)
                [*self._command, str(theirs.fileno())],
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._socket = ours
        self._loop.add_reader(ours, self._read_frames)
        self._deadline = self._guard.watch_child(self.pid)
        self._on_started(self.pid)
        self._start_threads()
        self._send_struct(b"S", self._build_start_message())
        telemetry.emit("worker.child_started", worker=os.getpid(), pid=self.pid)
        await self._wait_while_alive(self._ready, CHILD_START_TIMEOUT_S)
        if not self._ready.done():
            self.kill()
            raise self._build_died_error()

    def _build_start_message(self) -> ChildStartMessage:
        return ChildStartMessage(
            url=self._database.url.reveal(),
            settings=_convert_settings_to_text(self._database.settings),
            worker_pid=os.getpid(),
            modules=list(self._modules),
            import_path=[path or os.getcwd() for path in sys.path],  # noqa: PTH109  ("" is the current folder)
        )

    async def _wait_while_alive(self, future: asyncio.Future[Any], timeout_s: float | None = None) -> None:
        """Wait until the future is done or the child process has exited."""
        both: set[asyncio.Future[Any]] = {future, self._exit_code}
        await asyncio.wait(both, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)

    async def run_attempt(self, attempt: Attempt) -> TaskOutcome | None:
        """Run one attempt in the child process. Raise ChildDiedError if the process dies."""
        self.task_count += 1
        self._attempt, self._report = attempt, self._loop.create_future()
        self._peak_bytes, self._exceeded_bytes, self._begun = 0, None, False
        attempt.on_stop = self.stop_task
        guarded = cast("ChildDeadline", self._deadline)
        guarded.begin_attempt(attempt)
        deadline = cast("TaskContext", attempt.context).deadline
        self._send_struct(b"T", TaskAssignment(claimed=attempt.claimed, deadline=deadline))
        watcher = asyncio.create_task(self._watch_memory(attempt.task.memory))
        try:
            await self._wait_while_alive(self._report)
            if not self._report.done():
                raise self._build_died_error()
            return self._convert_report(attempt, self._report.result())
        finally:
            watcher.cancel()
            guarded.end_attempt()
            self._attempt = None
            if self._kill_timer is not None:
                self._kill_timer.cancel()
                self._kill_timer = None

    def _convert_report(self, attempt: Attempt, report: TaskReport) -> TaskOutcome | None:
        if report.completed and attempt.context is not None:
            attempt.context.completed = True
        return None if report.kind is None else TaskOutcome(report.kind, report.body, report.error)

    def stop_task(self, reason: str) -> None:
        """Ask the running task to stop. Kill the child process if the task does not stop in time."""
        grace_s = STOP_GRACE_BY_REASON_S.get(reason, 0.0)
        if self._attempt is not None and reason == STOP_REASON_UNRENEWED:
            grace_s = min(grace_s, self._attempt.claimed.lease_s * 0.05)
        if grace_s > 0:
            self._send_frame(b"X", reason.encode())
        if self._kill_timer is None:
            self._kill_timer = self._loop.call_later(grace_s, self.kill)

    def kill(self) -> None:
        if self._process is not None and not self._exit_code.done():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)  # with the processes that it started

    async def end_process(self) -> None:
        """Ask the child process to exit. Kill the process if it does not exit in time."""
        if self._process is None:
            return
        self._send_frame(b"Q", b"")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CHILD_EXIT_TIMEOUT_S):
                await asyncio.shield(self._exit_code)
        self.kill()
        await self._exit_code

    # Messages from the child

    def _read_frames(self) -> bool:
        """Handle the messages that have arrived. Return False if there was nothing to read."""
        connection = cast("socket.socket", self._socket)
        try:
            received = connection.recv(1 << 20)
        except BlockingIOError:
            return False
        except OSError:
            received = b""
        if not received:
            self._loop.remove_reader(connection)
            return False
        for kind, body in self._frames.feed(received):
            self._handle_message(kind, body)
        return True

    def _handle_message(self, kind: bytes, body: bytes) -> None:
        context = self._attempt.context if self._attempt is not None else None
        if kind == b"O" and not self._ready.done():
            self._ready.set_result(None)
        elif kind == b"B":
            self._begun = True
        elif kind == b"V" and self._report is not None and not self._report.done():
            self._report.set_result(msgspec.msgpack.decode(body, type=TaskReport))
        elif kind == b"P" and context is not None:
            progress = msgspec.msgpack.decode(body, type=Progress)
            context.progress(progress.percent, phase=progress.phase, message=progress.message)
        elif kind == b"K" and context is not None:
            context.completed = True
        elif kind == b"L" and context is not None:
            line = msgspec.msgpack.decode(body, type=ChildLogLine)
            self._lines.append(f"{line.level}: {line.message}")
            context.log(line.message, level=line.level, **line.fields)  # type: ignore[arg-type]
        elif kind == b"D" and context is not None:
            request = msgspec.msgpack.decode(body, type=EngineCallRequest)
            handling = asyncio.create_task(self._handle_gateway_request(context, request))
            self._requests.add(handling)
            handling.add_done_callback(self._requests.discard)

    async def _handle_gateway_request(self, context: TaskContext, request: EngineCallRequest) -> None:
        """Call the engine for a request from the child process, and send the response."""
        try:
            if (
                request.method not in ALLOWED_GATEWAY_METHODS
                or context.gateway is None
                or context.lease is None
            ):
                raise ValueError(f"unknown gateway method: {request.method}")
            value: Any = await getattr(context.gateway, request.method)(context.lease, *request.args)
            response = EngineCallResponse(number=request.number, value=convert_ids_to_text(value))
        except Exception as error:
            response = EngineCallResponse(number=request.number, error=TransferredError.from_exception(error))
        self._send_struct(b"A", response)

    def _send_struct(self, kind: bytes, message: msgspec.Struct) -> None:
        self._send_frame(kind, msgspec.msgpack.encode(message))

    def _send_frame(self, kind: bytes, body: bytes) -> None:
        """Send a frame to the child process and wait until the frame is sent.

        A live child always reads, in a thread of its own.
        """
        connection = cast("socket.socket", self._socket)
        message = encode_frame(kind, body)
        with contextlib.suppress(OSError):
            connection.setblocking(True)
            connection.settimeout(5.0)
            connection.sendall(message)
        connection.setblocking(False)

    # In threads

    def _start_threads(self) -> None:
        reader = threading.Thread(
            target=self._collect_output_lines, name=f"child-{self.pid}-output", daemon=True
        )
        reader.start()
        threading.Thread(
            target=self._wait_for_exit, args=(reader,), name=f"child-{self.pid}-exit", daemon=True
        ).start()

    def _wait_for_exit(self, output_reader: threading.Thread) -> None:
        process = cast("subprocess.Popen[bytes]", self._process)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = code = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # the processes that it started end with it
        output_reader.join(LAST_LINES_TIMEOUT_S)  # the error shows the last lines
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._handle_exit, code, usage.ru_maxrss * 1024)

    def _handle_exit(self, exit_code: int, max_rss_bytes: int) -> None:
        while self._read_frames():  # the last messages tell whether the task began or ended
            pass
        # The system's maximum includes the worker's memory from before the child's own program started.
        self._peak_bytes = self._peak_bytes or (0 if sys.platform == "darwin" else max_rss_bytes)
        if self._deadline is not None:
            self._lease_expired = self._deadline.has_expired
            self._deadline.release()
        if not self._exit_code.done():
            self._exit_code.set_result(exit_code)
        telemetry.emit(
            "worker.child_ended",
            worker=os.getpid(),
            pid=self.pid,
            reason=describe_exit(exit_code),
            task=self._attempt.claimed.type if self._attempt is not None else None,
            peak=self._peak_bytes,
        )
        self._on_ended(self)

    def _collect_output_lines(self) -> None:
        process = cast("subprocess.Popen[bytes]", self._process)
        if process.stdout is None:
            return
        for line in process.stdout:
            self._lines.append(line.decode(errors="replace").rstrip()[:500])
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.buffer.write(line)
                sys.stderr.flush()

    async def _watch_memory(self, max_bytes: int | None) -> None:
        while True:
            used_bytes = await asyncio.to_thread(measure_non_file_memory, self.pid)
            self._peak_bytes = max(self._peak_bytes, used_bytes)
            if max_bytes is not None and used_bytes > max_bytes:
                self._exceeded_bytes = max_bytes
                self.kill()
                return
            await asyncio.sleep(CHILD_MEMORY_CHECK_INTERVAL_S)

    def _build_died_error(self) -> ChildDiedError:
        exit_code = self._exit_code.result() if self._exit_code.done() else None
        late = f"was not ready within {CHILD_START_TIMEOUT_S:.0f} s"
        return ChildDiedError(
            late if exit_code is None else describe_exit(exit_code),
            peak_bytes=self._peak_bytes,
            lines=self._lines,
            begun=self._begun,
            killed=exit_code is not None and exit_code < 0,
            lease_expired=self._lease_expired,
            max_bytes=self._exceeded_bytes,
        )


def _convert_settings_to_text(settings: Settings) -> dict[str, str]:
    """Convert settings, without the database URL, to the text that a child process parses."""
    texts: dict[str, str] = {}
    for name in settings.__dataclass_fields__:
        value: object = getattr(settings, name)
        if value is None or name == "database_url":
            continue
        if isinstance(value, timedelta):
            texts[name] = f"{value.total_seconds()}s"
        else:
            reveal = getattr(value, "reveal", None)
            texts[name] = reveal() if reveal is not None else str(value)
    return texts
