"""One child process as its worker sees it: started, given tasks, answered, watched, and ended."""

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
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import msgspec

from holdfast import telemetry
from holdfast.engine.connection import Database
from holdfast.model import Progress
from holdfast.settings import Settings
from holdfast.worker.context import Context
from holdfast.worker.executor import Verdict, failure, timed_out
from holdfast.worker.heartbeat_wire import Frames, Kind
from holdfast.worker.heartbeat_wire import frame as framed
from holdfast.worker.isolation_wire import Begin, Ended, Given, Line, Problem, Question, Reply, plain
from holdfast.worker.memory import anonymous_bytes
from holdfast.worker.running import HANDED_BACK, RELEASED, TIME_LIMIT, UNRENEWED, Attempt

START_SECONDS = 120.0
END_SECONDS = 5.0
WATCH_SECONDS = 0.1
LAST_LINES = 60
# How long code in a child has to stop by itself, by the reason. Without a lease it has no time at all.
PATIENCE = {TIME_LIMIT: 1.0, "cancelled": 2.0, RELEASED: 3.0, UNRENEWED: 0.5}
ASKED = frozenset({"report", "get_steps", "save_step", "add_tasks", "submit"})


class ChildDied(Exception):  # noqa: N818  (it is what happened, not a mistake of ours)
    def __init__(self, reason: str, peak: int, lines: Sequence[str], *, over: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.peak = peak
        self.lines = lines
        self.over = over

    def verdict(self, attempt: Attempt, *, started: bool) -> Verdict | None:
        """The task's own crash, unless we ended the child."""
        stopped = attempt.stopped
        if stopped == TIME_LIMIT:
            return timed_out(attempt.task, more=", did not stop when told to, and was killed")
        if stopped is not None:
            return Verdict("release", None, stopped) if stopped in HANDED_BACK else None
        if not started:
            problem = RuntimeError(f"the child process did not start: {self.reason}")
            return failure("fail", problem, message="\n".join([str(problem), *self.lines]))
        message = (
            f"The child process that ran the task {self.reason}; its memory peaked at {_readable(self.peak)}."
        )
        if self.over is not None:
            message = f"The task held {_readable(self.peak)} of memory; it may hold {_readable(self.over)}."
        body = {
            "type": "MemoryExceeded" if self.over is not None else "ProcessDied",
            "message": message,
            "traceback": "\n".join(["Last lines:", *self.lines]) if self.lines else None,
            "fingerprint": f"{attempt.claimed.type} {self.reason}",
        }
        return Verdict("crash", msgspec.json.encode(body), message)


class Child:
    def __init__(self, command: Sequence[str], database: Database, line: int | None) -> None:
        self._command = command
        self._database = database
        self._line = line
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._frames = Frames()
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._gone: asyncio.Future[str] = self._loop.create_future()
        self._verdict: asyncio.Future[Ended] | None = None
        self._attempt: Attempt | None = None
        self._questions: set[asyncio.Task[None]] = set()
        self._killer: asyncio.TimerHandle | None = None
        self._peak = 0
        self._over: int | None = None
        self.tasks = 0
        self.leaving = False

    @property
    def alive(self) -> bool:
        return not (self._gone.done() or self.leaving)

    @property
    def pid(self) -> int:
        return cast("subprocess.Popen[bytes]", self._process).pid

    async def start(self) -> None:
        """Returns when the application is imported and its lifespan open. ChildDied if it is not to be."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        passed = [theirs.fileno()] + ([self._line] if self._line is not None else [])
        with theirs:
            self._process = subprocess.Popen(  # noqa: ASYNC220  (milliseconds; and our own wait, for the memory)
                [*self._command, str(theirs.fileno())],
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._socket = ours
        self._loop.add_reader(ours, self._read)
        for work in (self._wait, self._copy_output):
            threading.Thread(target=work, name=f"child-{self.pid}", daemon=True).start()
        settings = self._database.settings
        begin = Begin(url=self._database.url.reveal(), settings=_portable(settings), worker=os.getpid())
        self._say(b"S", begin)
        telemetry.emit("worker.child_started", worker=os.getpid(), pid=self.pid)
        await self._either(self._ready, START_SECONDS)
        if not self._ready.done():
            late = f"was not ready within {START_SECONDS:.0f} s"
            reason = self._gone.result() if self._gone.done() else late
            self.kill()
            raise self._died(reason)

    async def _either(self, wanted: asyncio.Future[Any], patience: float | None = None) -> None:
        """Until what is wanted is there, or the process is gone."""
        both: set[asyncio.Future[Any]] = {wanted, self._gone}
        await asyncio.wait(both, timeout=patience, return_when=asyncio.FIRST_COMPLETED)

    async def perform(self, attempt: Attempt) -> Verdict | None:
        self.tasks += 1
        self._attempt, self._verdict = attempt, self._loop.create_future()
        self._peak, self._over = 0, None
        attempt.on_stop = self.stop
        deadline = cast("Context", attempt.context).deadline
        self._say(b"T", Given(claimed=attempt.claimed, deadline=deadline))
        watching = asyncio.create_task(self._watch(attempt.task.memory))
        try:
            await self._either(self._verdict)
            if not self._verdict.done():
                raise self._died(await self._gone)
            return self._judged(attempt, self._verdict.result())
        finally:
            watching.cancel()
            self._attempt = None
            if self._killer is not None:
                self._killer.cancel()
                self._killer = None

    def _judged(self, attempt: Attempt, ended: Ended) -> Verdict | None:
        self.leaving = ended.leaving
        if ended.completed and attempt.context is not None:
            attempt.context.completed = True
        if ended.kind is None:
            return Verdict("release", None, attempt.stopped) if attempt.stopped in HANDED_BACK else None
        return Verdict(ended.kind, ended.body, ended.error)

    def stop(self, reason: str) -> None:
        """Ask the code in it to stop; kill it if it does not in time."""
        patience = PATIENCE.get(reason, 0.0)
        if self._attempt is not None and reason == UNRENEWED:
            patience = min(patience, self._attempt.claimed.lease_s * 0.05)
        if patience > 0:
            self._send(b"X", reason.encode())
        if self._killer is None:
            self._killer = self._loop.call_later(patience, self.kill)

    def kill(self) -> None:
        if self._process is not None and not self._gone.done():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)  # with what it started

    async def end(self) -> None:
        """It is not needed any more."""
        if self._process is None:
            return
        self._send(b"Q", b"")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await asyncio.shield(self._gone)
        self.kill()
        await self._gone

    # From the child

    def _read(self) -> None:
        connection = cast("socket.socket", self._socket)
        try:
            received = connection.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._loop.remove_reader(connection)
            return
        for kind, body in self._frames.feed(received):
            self._hear(kind, body)

    def _hear(self, kind: bytes, body: bytes) -> None:
        context = self._attempt.context if self._attempt is not None else None
        if kind == b"O" and not self._ready.done():
            self._ready.set_result(None)
        elif kind == b"V" and self._verdict is not None and not self._verdict.done():
            self._verdict.set_result(msgspec.msgpack.decode(body, type=Ended))
        elif kind == b"P" and context is not None:
            progress = msgspec.msgpack.decode(body, type=Progress)
            context.progress(progress.percent, phase=progress.phase, message=progress.message)
        elif kind == b"K" and context is not None:
            context.completed = True
        elif kind == b"L" and context is not None:
            line = msgspec.msgpack.decode(body, type=Line)
            self._lines.append(f"{line.level}: {line.message}")
            context.log(line.message, level=line.level, **line.fields)  # type: ignore[arg-type]
        elif kind == b"D" and context is not None:
            asking = asyncio.create_task(self._ask(context, msgspec.msgpack.decode(body, type=Question)))
            self._questions.add(asking)
            asking.add_done_callback(self._questions.discard)

    async def _ask(self, context: Context, question: Question) -> None:
        """What the code in the child wants from the database, done here with our connections."""
        try:
            if question.method not in ASKED or context.desk is None or context.lease is None:
                raise ValueError(f"no such question: {question.method}")
            value: Any = await getattr(context.desk, question.method)(context.lease, *question.args)
            self._say(b"A", Reply(number=question.number, value=plain(value)))
        except Exception as problem:
            self._say(b"A", Reply(number=question.number, problem=Problem.of(problem)))

    def _say(self, kind: Kind | bytes, message: msgspec.Struct) -> None:
        self._send(kind, msgspec.msgpack.encode(message))

    def _send(self, kind: Kind | bytes, body: bytes) -> None:
        """A child always reads, in a thread of its own; one that does not is dying."""
        connection = cast("socket.socket", self._socket)
        message = framed(cast("Kind", kind), body)
        with contextlib.suppress(OSError):
            connection.setblocking(True)
            connection.settimeout(5.0)
            connection.sendall(message)
        connection.setblocking(False)

    # Threads

    def _wait(self) -> None:
        process = cast("subprocess.Popen[bytes]", self._process)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = code = os.waitstatus_to_exitcode(status)
        reason = f"was killed by {_signal(-code)}" if code < 0 else f"ended with exit code {code}"
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # what it started ends with it
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._is_gone, reason, usage.ru_maxrss * 1024)

    def _is_gone(self, reason: str, most: int) -> None:
        # The system's own maximum counts the worker's memory too, from before the child became itself.
        self._peak = self._peak or (0 if sys.platform == "darwin" else most)
        if not self._gone.done():
            self._gone.set_result(reason)
        name = self._attempt.claimed.type if self._attempt is not None else None
        telemetry.emit(
            "worker.child_ended", worker=os.getpid(), pid=self.pid, reason=reason, task=name, peak=self._peak
        )

    def _copy_output(self) -> None:
        process = cast("subprocess.Popen[bytes]", self._process)
        if process.stdout is None:
            return
        for line in process.stdout:
            self._lines.append(line.decode(errors="replace").rstrip()[:500])
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.buffer.write(line)
                sys.stderr.flush()

    async def _watch(self, most: int | None) -> None:
        while True:
            held = await asyncio.to_thread(anonymous_bytes, self.pid)
            self._peak = max(self._peak, held)
            if most is not None and held > most:
                self._over = most
                self.kill()
                return
            await asyncio.sleep(WATCH_SECONDS)

    def _died(self, reason: str) -> ChildDied:
        return ChildDied(reason, self._peak, list(self._lines), over=self._over)


def _portable(settings: Settings) -> dict[str, str]:
    """Settings as the child reads them; the address of the database travels by itself."""
    found: dict[str, str] = {}
    for name in settings.__dataclass_fields__:
        value: object = getattr(settings, name)
        if value is None or name == "database_url":
            continue
        if isinstance(value, timedelta):
            found[name] = f"{value.total_seconds()}s"
        else:
            reveal = getattr(value, "reveal", None)
            found[name] = reveal() if reveal is not None else str(value)
    return found


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _readable(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"
