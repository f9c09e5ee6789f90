"""The worker's side of its heartbeat: a process that renews leases, and a thread that listens to it.

The process (heartbeat_child.py) is told of every lease before its task starts and renews it until the
outcome was accepted; the same goes for messages (visibility.py). The thread here learns which are lost, sends
progress with a connection of its own, watches the loop, and stops each attempt before its lease ends when no
renewal was confirmed, counted from when the last good one was sent: nobody else can hold the task by then. If
the process dies it is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, cast
from uuid import UUID

import msgspec

from holdfast import telemetry
from holdfast.engine.leases import Claimed, Command
from holdfast.settings import Secret, Settings
from holdfast.worker.heartbeat_child import Pulse
from holdfast.worker.heartbeat_wire import Frames, Kind, Round, Start, frame, holding, ids_in
from holdfast.worker.messages.visibility import Visibility
from holdfast.worker.reports import Reports
from holdfast.worker.running import UNRENEWED, Attempt, Running
from holdfast.worker.watchdog import Watchdog

TICK = 0.25
LAST_SECONDS = 2.0
READY_SECONDS = 15.0
LOOP_PATIENCE = 2.0  # a loop that has not turned for this long does not enforce time limits
ABOUT_SECONDS, IDLE_ABOUT_SECONDS = 15.0, 600.0
_CHILD = "from holdfast.worker.heartbeat_child import main; main()"
_log = logging.getLogger("holdfast.worker")


class Heartbeat:
    def __init__(
        self,
        url: Secret,
        settings: Settings,
        worker: str,
        running: Running,
        visibility: Visibility,
        about: Callable[[], dict[str, Any]] = dict[str, Any],
    ) -> None:
        self._url = url
        self._settings = settings
        self._worker = worker
        self._running = running
        self._visibility = visibility
        visibility.send = self._send
        self._about = about
        self.commanded: Callable[[Command], None] = lambda _: None
        self._ended = threading.Event()
        self._ready = asyncio.Event()
        self._thread: threading.Thread | None = None
        self._worker_loop: asyncio.AbstractEventLoop | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._unsent = bytearray()
        self._sending = threading.Lock()
        self._memory = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        self._memory.write(bytes(1 << 16))
        self._memory.flush()
        self._pulse = Pulse(self._memory.fileno())
        self._reports = Reports(url, settings, worker, running.all)
        self._watchdog = Watchdog(running, worker)
        self._told_about = 0.0
        self._receive: Callable[[], None] = lambda: None  # whatever the process has said

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def lag(self) -> float:
        """Seconds that the loop was late lately."""
        return self._watchdog.lag

    @property
    def late(self) -> float:
        """Seconds since the loop turned last."""
        return self._watchdog.late

    @property
    def blocked(self) -> dict[str, object] | None:
        return self._watchdog.blocked

    @property
    def line(self) -> int | None:
        """The descriptor that children inherit, so that their end is known to the heartbeat too."""
        return None if self._socket is None else self._socket.fileno()

    # On the worker's loop

    def start(self) -> None:
        if self._thread is None:
            self._worker_loop = self._visibility.worker_loop = asyncio.get_running_loop()
            self._beat_pulse()
            self._start_process()
            self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
            self._thread.start()

    async def ready(self) -> None:
        """The process is up and connected, so that leases do not depend on how fast it starts."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READY_SECONDS):
                await self._ready.wait()

    async def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ended.set()
            await asyncio.to_thread(thread.join)
            done = not len(self._running) and not self._visibility.busy
            self._say(b"E", b"done" if done else b"")
            await asyncio.to_thread(self._end_process, wait=done)

    def hold(self, claimed: Sequence[tuple[Claimed, bool]], ended: Sequence[UUID], renewed_at: float) -> None:
        """Before the tasks start; with those whose outcomes were accepted."""
        parts = b""
        if ended:
            parts = frame(b"D", b"".join([each.bytes for each in ended]))
        if claimed:
            parts += holding(claimed, renewed_at)
        if parts:
            self._send(parts)

    def look_now(self) -> None:
        """Something was cancelled: ask about all leases, whether they are due or not."""
        if len(self._running):
            self._say(b"N")

    def _beat_pulse(self) -> None:
        """Proves that the loop turns."""
        if self._thread is not None or not self._ended.is_set():
            now = time.monotonic()
            self._pulse.set(now)
            self._watchdog.turned(now)
            cast("asyncio.AbstractEventLoop", self._worker_loop).call_later(TICK, self._beat_pulse)

    # The process

    def _start_process(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        numbers = (theirs.fileno(), self._memory.fileno())
        if self._process is not None:  # it hung up; two of them would hand in what the other renews
            self._process.kill()
            self._process.wait()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CHILD, *map(str, numbers)],
                pass_fds=numbers,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        with self._sending:
            before, self._socket, self._unsent = self._socket, ours, bytearray()
        if before is not None:
            before.close()
        self._send(frame(b"S", msgspec.msgpack.encode(self._beginning())))
        held = self._running.all()
        if held:
            since = min(a.renewed_at for a in held)
            self._send(holding([(a.claimed, a.isolated) for a in held], since))
        self._send(self._visibility.again())
        self._told_about = 0.0

    def _beginning(self) -> Start:
        return Start(
            url=self._url.reveal(),
            worker=self._worker,
            pid=os.getpid(),
            connect_timeout_s=self._settings.connect_timeout.total_seconds(),
            call_timeout_s=self._settings.call_timeout.total_seconds(),
            log_format=self._settings.log_format,
            loop_patience_s=LOOP_PATIENCE,
        )

    def _end_process(self, *, wait: bool) -> None:
        """What could not be stopped is released by the process once we are gone, so it is not waited for."""
        if self._socket is not None:
            self._socket.close()
        if self._process is not None and wait:
            try:
                self._process.wait(LAST_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()  # it holds nothing any more
                self._process.wait()

    def _say(self, kind: Kind, body: bytes = b"") -> None:
        self._send(frame(kind, body))

    def _send(self, message: bytes) -> None:
        with self._sending:
            if self._unsent:
                self._unsent += message
                message = bytes(self._unsent)
                self._unsent.clear()
            try:
                sent = self._socket.send(message) if self._socket is not None else 0
            except BlockingIOError:
                sent = 0
            except OSError:  # it died; whoever replaces it is told everything
                return
            if sent < len(message):
                self._unsent += message[sent:]

    # In the thread

    def _run(self) -> None:
        asyncio.run(self._all())

    async def _all(self) -> None:
        parts = (self._listen(), self._reports.run(self._ended))
        going = [asyncio.create_task(part) for part in parts]
        await self._guard()
        # The others look at `ended` too; one that hangs in a call is not waited for.
        _, hanging = await asyncio.wait(going, timeout=LAST_SECONDS)
        for part in hanging:
            part.cancel()
        await asyncio.gather(*going, return_exceptions=True)

    async def _guard(self) -> None:
        """Beside the rest, because nothing else may hold it up."""
        look_at = 0.0
        while not self._ended.is_set():
            self._receive()  # this thread may have been starved itself, and the renewals went on meanwhile
            now = time.monotonic()
            if now >= look_at:
                look_at = now + self._stop_what_may_be_lost(now)
            self._visibility.stop_what_may_be_lost(now)
            blocker = self._watchdog.look(now)
            if blocker is not None:
                self._say(b"B", blocker)
            if self._unsent:
                self._send(b"")
            self._tell_about(now)
            await asyncio.sleep(TICK)

    def _stop_what_may_be_lost(self, now: float) -> float:
        """Answers when to look again: often enough for the shortest lease."""
        shortest = 20.0
        for attempt in self._running.all():
            shortest = min(shortest, attempt.claimed.lease_s)
            if now >= attempt.must_stop_at:
                self._stop(attempt, UNRENEWED)
        return shortest * 0.05

    def _tell_about(self, now: float) -> None:
        pause = ABOUT_SECONDS if len(self._running) else IDLE_ABOUT_SECONDS
        if now >= self._told_about + pause:
            self._told_about = now
            self._say(b"A", msgspec.json.encode(self._about()))

    async def _listen(self) -> None:
        while not self._ended.is_set():
            try:
                await self._listen_to_process()
            except Exception:
                # A heartbeat that ends here would lose every lease of a worker that goes on working.
                _log.exception("the heartbeat failed and goes on")
            if not self._ended.is_set():
                await asyncio.sleep(TICK)
                telemetry.emit("worker.heartbeat_replaced", worker=self._worker)
                self._start_process()

    async def _listen_to_process(self) -> None:
        """Until the process is gone."""
        loop, line, frames, gone = asyncio.get_running_loop(), self._socket, Frames(), asyncio.Event()
        if line is None:
            return

        def receive() -> None:
            try:
                received = b"" if gone.is_set() else line.recv(1 << 20)
            except BlockingIOError:
                return
            except OSError:
                received = b""
            if not received:
                gone.set()
                loop.remove_reader(line)
            for kind, body in frames.feed(received):
                self._hear(kind, body)

        self._receive = receive
        loop.add_reader(line, receive)
        try:
            while not (gone.is_set() or self._ended.is_set()):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await gone.wait()
        finally:
            self._receive = lambda: None
            loop.remove_reader(line)

    def _hear(self, kind: bytes, body: bytes) -> None:
        if kind == b"R":
            self._apply(msgspec.msgpack.decode(body, type=Round))
        elif kind == b"V":
            self._visibility.hear(body)
        elif kind == b"O" and self._worker_loop is not None:
            self._worker_loop.call_soon_threadsafe(self._ready.set)
        elif kind == b"W":
            telemetry.emit("database.away", error=body.decode(errors="replace"), retry_in=TICK)
        elif kind == b"C" and self._worker_loop is not None:
            self._worker_loop.call_soon_threadsafe(self.commanded, cast("Command", body.decode()))

    def _apply(self, news: Round) -> None:
        held = self._running.by_id()
        for name in ids_in(news.kept):
            attempt = held.get(UUID(bytes=name))
            if attempt is not None and attempt.renewed_at < news.sent_at:
                attempt.renewed_at = news.sent_at
        for names, reason in ((news.cancelled, "cancelled"), (news.lost, "lease lost")):
            for name in ids_in(names):
                attempt = held.get(UUID(bytes=name))
                if attempt is not None and attempt.context is not None and attempt.context.completed:
                    attempt.renewed_at = float("inf")  # it has succeeded in the user's own transaction
                elif attempt is not None:
                    self._stop(attempt, reason)

    def _stop(self, attempt: Attempt, reason: str) -> None:
        if not attempt.mark_stopped(reason):  # plain code sees it even if the loop is blocked
            return
        telemetry.emit("task.lease_lost", task=attempt.claimed.id, attempt=attempt.claimed.attempt)
        if self._worker_loop is not None and not self._worker_loop.is_closed():
            self._worker_loop.call_soon_threadsafe(attempt.interrupt)
