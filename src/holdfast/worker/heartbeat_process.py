"""The heartbeat process: renews the leases of one worker, whatever user code does to that worker.

It is a separate process, so neither a blocked event loop nor a C call that holds the GIL can starve it. It
renews while the worker is alive, and it learns that from the operating system: it does not renew for a
stopped process (SIGSTOP, a debugger), and it does renew for a busy one. It ends with its worker, however that
ends, and then returns at once what the worker still held: released without a charge after an orderly
shutdown, as a crash otherwise. Tasks that ran in child processes are never charged for the end of the worker.
Messages are returned in the same way.

A worker whose event loop is blocked cannot enforce time limits. When the task that blocks the loop (or any
task, if the blocking one is unknown) is past its limit, this process kills the worker: that task has failed,
and the other tasks are released.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import msgspec

from holdfast.engine import leases
from holdfast.engine.connection import Connection, open_connection
from holdfast.engine.leases import Lease, Outcome
from holdfast.errors import HoldfastError
from holdfast.settings import Secret, Settings
from holdfast.worker import heartbeat_protocol as protocol
from holdfast.worker.framing import FrameDecoder, encode_frame
from holdfast.worker.heartbeat_protocol import (
    HeartbeatStartMessage,
    LeasedMessage,
    LeaseRenewals,
    LoopTimestamp,
)
from holdfast.worker.messages.renewal import MessageRenewer, return_messages

HEARTBEAT_RETRY_INTERVAL_S = 0.2
RENEW_AFTER_LEASE_SHARE = 0.25
TIME_LIMIT_GRACE_S = 2.0  # the worker may stop a task itself for this long after the task's time limit
LEASE_RETURN_TIMEOUT_S = 20.0  # how long to try to return leases after the worker's death
CHILDREN_EXIT_TIMEOUT_S = 2.0
MAX_OUTCOMES_PER_CALL = 500


class LeaseRecord(NamedTuple):
    """A lease that the heartbeat process renews, with the time of its last renewal."""

    # The fields stay packed: most leases are dropped again before anything reads them.
    record: tuple[bytes, int, int, float, float, int]
    received_at: float
    renewed_at: float

    @property
    def lease(self) -> Lease:
        task_id, nonce, attempt, *_ = self.record
        return Lease(id=UUID(bytes=task_id), attempt=attempt, nonce=nonce)

    @property
    def lease_duration_s(self) -> float:
        return self.record[3]

    @property
    def time_limit_at(self) -> float:
        return self.received_at + self.record[4]

    @property
    def is_in_child_process(self) -> bool:
        return bool(self.record[5])

    @property
    def renewal_due_at(self) -> float:
        return self.renewed_at + self.lease_duration_s * RENEW_AFTER_LEASE_SHARE


class HeartbeatProcess:
    """Renews leases and message visibility for one worker until that worker ends."""

    def __init__(self, connection: socket.socket, loop_timestamp: LoopTimestamp) -> None:
        self._socket = connection
        self._loop_timestamp = loop_timestamp
        self._frames = FrameDecoder()
        self._leases: dict[bytes, LeaseRecord] = {}
        self._next_renewal_at = float("inf")
        self._renew_all_at = float("inf")
        self._blocking_task: bytes | None = None
        self._worker_status: bytes | None = None
        self._orderly_shutdown = False
        self._closed = asyncio.Event()  # the worker and its children have all closed their end of the socket
        self._wakeup = asyncio.Event()
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._start: HeartbeatStartMessage | None = None
        self._started: asyncio.Future[HeartbeatStartMessage] = asyncio.get_running_loop().create_future()
        self._settings = Settings()
        self._messages = MessageRenewer(self._enqueue_frame, lambda: not self._is_worker_stopped())
        self._frame_handlers: dict[bytes, Callable[[bytes], None]] = {
            protocol.START_FRAME: self._on_start,
            protocol.HOLD_LEASES_FRAME: self._on_hold_leases,
            protocol.DROP_LEASES_FRAME: self._on_drop_leases,
            protocol.RENEW_NOW_FRAME: self._on_renew_now,
            protocol.HOLD_MESSAGES_FRAME: self._messages.handle_hold_frame,
            protocol.DROP_MESSAGES_FRAME: self._messages.handle_drop_frame,
            protocol.BLOCKING_TASK_FRAME: self._on_blocking_task,
            protocol.WORKER_STATUS_FRAME: self._on_worker_status,
            protocol.SHUTDOWN_FRAME: self._on_shutdown,
        }

    async def run(self) -> None:
        """Renew leases until the worker ends, then return the leases that the worker still held."""
        asyncio.get_running_loop().add_reader(self._socket, self._read_frames)
        loops = (self._renew_leases_forever(), self._renew_messages_forever(), self._send_frames_forever())
        tasks = [asyncio.create_task(loop) for loop in loops]
        killed_for: bytes | None = None
        while not (self._closed.is_set() or self._is_worker_dead()):
            await asyncio.sleep(HEARTBEAT_RETRY_INTERVAL_S)
            killed_for = killed_for or self._kill_blocked_worker()
        held, self._leases = self._leases, {}
        for task in tasks:
            task.cancel()
        # Bounded, because a library may swallow a cancellation that arrives together with a result.
        await asyncio.wait(tasks, timeout=HEARTBEAT_RETRY_INTERVAL_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CHILDREN_EXIT_TIMEOUT_S):
                await self._closed.wait()
        messages = self._messages.take_all_messages()
        # Code that the worker could not stop ends only with the worker.
        while self._orderly_shutdown and (held or messages) and not self._is_worker_dead():  # noqa: ASYNC110
            await asyncio.sleep(HEARTBEAT_RETRY_INTERVAL_S)
        await self._return_leases_and_messages(held, messages, killed_for)

    # Frames from the worker

    def _read_frames(self) -> None:
        try:
            received = self._socket.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._closed.set()
            self._wakeup.set()
            return
        for kind, body in self._frames.feed(received):
            self._frame_handlers[kind](body)

    def _on_start(self, body: bytes) -> None:
        self._start = start = msgspec.msgpack.decode(body, type=HeartbeatStartMessage)
        if not self._started.done():
            self._started.set_result(start)
        self._settings = Settings(
            connect_timeout=timedelta(seconds=start.connect_timeout_s),
            call_timeout=timedelta(seconds=start.call_timeout_s),
        )

    def _on_hold_leases(self, body: bytes) -> None:
        now = time.monotonic()
        (renewed_at,) = protocol.INSTANT_STRUCT.unpack_from(body)
        next_renewal_at = float("inf")
        for record in protocol.LEASE_STRUCT.iter_unpack(memoryview(body)[protocol.INSTANT_STRUCT.size :]):
            lease = self._leases[record[0]] = LeaseRecord(record, now, renewed_at)
            next_renewal_at = min(next_renewal_at, lease.renewal_due_at)
        if next_renewal_at < self._next_renewal_at:
            self._next_renewal_at = next_renewal_at
            self._wakeup.set()

    def _on_drop_leases(self, body: bytes) -> None:
        for task_id in protocol.split_task_ids(body):
            self._leases.pop(task_id, None)

    def _on_renew_now(self, _: bytes) -> None:
        self._renew_all_at = time.monotonic() if self._leases else float("inf")
        self._next_renewal_at = min(self._next_renewal_at, self._renew_all_at)
        self._wakeup.set()

    def _on_blocking_task(self, body: bytes) -> None:
        self._blocking_task = body or None

    def _on_worker_status(self, body: bytes) -> None:
        self._worker_status = body
        self._wakeup.set()

    def _on_shutdown(self, body: bytes) -> None:
        self._orderly_shutdown = True
        if body:  # the worker holds nothing any more
            self._leases.clear()

    # The state of the worker process

    def _is_worker_dead(self) -> bool:
        return self._start is not None and (
            os.getppid() != self._start.pid or _read_process_state(self._start.pid) in {"Z", "X", "x"}
        )

    def _is_worker_stopped(self) -> bool:
        return self._start is not None and _read_process_state(self._start.pid) in {"T", "t"}

    def _kill_blocked_worker(self) -> bytes | None:
        """Kill the worker if a task blocks its event loop past the time limit. Return the task's id."""
        start, now = self._start, time.monotonic()
        blocked_s = now - self._loop_timestamp.read_instant()
        if start is None or self._is_worker_stopped() or blocked_s < start.loop_blocked_after_s:
            return None
        overdue = {
            task_id: record
            for task_id, record in self._leases.items()
            if not record.is_in_child_process and now > record.time_limit_at + TIME_LIMIT_GRACE_S
        }
        if self._blocking_task in self._leases:
            overdue = {task_id: r for task_id, r in overdue.items() if task_id == self._blocking_task}
        if not overdue or self._is_worker_dead():
            return None
        culprit = min(overdue, key=lambda task_id: overdue[task_id].time_limit_at)
        self._log_error(
            f"Task {overdue[culprit].lease.id} has blocked the event loop for {blocked_s:.1f} s"
            f" and is past its time limit. Killing worker process {start.pid}."
        )
        os.kill(start.pid, signal.SIGKILL)
        return culprit

    def _log_error(self, message: str) -> None:
        if self._start is not None and self._start.log_format == "json":
            record = {"level": "error", "event": "worker.killed", "error": message}
            message = msgspec.json.encode(record).decode()
        sys.stderr.write(message + "\n")
        sys.stderr.flush()

    # Renewals

    async def _renew_leases_forever(self) -> None:
        start = await self._started
        while True:
            try:
                async with open_connection(Secret(start.url), self._settings) as connection:
                    self._enqueue_frame(protocol.READY_FRAME)
                    await self._renew_while_connected(connection, start)
            except HoldfastError as error:
                self._enqueue_frame(protocol.DATABASE_PROBLEM_FRAME, str(error).encode())
            except Exception as error:  # renewing must go on after any error
                self._enqueue_frame(
                    protocol.DATABASE_PROBLEM_FRAME, f"{type(error).__name__}: {error}".encode()
                )
            await asyncio.sleep(HEARTBEAT_RETRY_INTERVAL_S)

    async def _renew_messages_forever(self) -> None:
        start = await self._started
        await self._messages.renew_forever(Secret(start.url), self._settings)

    async def _renew_while_connected(self, connection: Connection, start: HeartbeatStartMessage) -> None:
        while True:
            if self._worker_status is not None:
                status, self._worker_status = self._worker_status, None
                command = await leases.heartbeat_worker(connection, start.worker, msgspec.json.decode(status))
                if command is not None:
                    self._enqueue_frame(protocol.COMMAND_FRAME, command.encode())
            if time.monotonic() >= self._next_renewal_at:
                if self._is_worker_stopped():
                    await asyncio.sleep(HEARTBEAT_RETRY_INTERVAL_S)
                    continue
                await self._renew_due_leases(connection, start)
            await self._wait_until_due()

    async def _wait_until_due(self) -> None:
        """Wait until a lease renewal is due or the worker sends a frame."""
        if self._worker_status is None and time.monotonic() < self._next_renewal_at:
            self._wakeup.clear()
            pause_s = max(min(self._next_renewal_at - time.monotonic(), 60.0), 0.0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wakeup.wait()

    async def _renew_due_leases(self, connection: Connection, start: HeartbeatStartMessage) -> None:
        """Renew the leases whose renewal is due or will be due soon."""
        now = time.monotonic()
        renew_all, self._renew_all_at = now >= self._renew_all_at, float("inf")
        due = {
            task_id: record
            for task_id, record in self._leases.items()
            if renew_all or now >= record.renewed_at + record.lease_duration_s * RENEW_AFTER_LEASE_SHARE / 2
        }
        if due and (renew_all or any(now >= record.renewal_due_at for record in due.values())):
            await self._renew_leases(connection, start, due, now)
        # Leases that arrived during the request are in self._leases and count too.
        renewal_times = (record.renewal_due_at for record in self._leases.values())
        self._next_renewal_at = min(min(renewal_times, default=float("inf")), self._renew_all_at)

    async def _renew_leases(
        self, connection: Connection, start: HeartbeatStartMessage, due: dict[bytes, LeaseRecord], now: float
    ) -> None:
        request_timeout_s = max(0.5, min(r.renewed_at + r.lease_duration_s for r in due.values()) - now)
        held = [record.lease for record in due.values()]
        request = leases.heartbeat_tasks(connection, worker=start.worker, held=held)
        async with asyncio.timeout(request_timeout_s):
            response = await request
        lost = {task_id.bytes for task_id in response.lost}
        cancelled = {task_id.bytes for task_id in response.cancelled}
        for task_id, record in due.items():
            if self._leases.get(task_id) is record:  # else it was dropped or belongs to a newer attempt
                self._leases[task_id] = record._replace(renewed_at=now)
                if task_id in lost:
                    del self._leases[task_id]
        renewals = LeaseRenewals(
            sent_at=now,
            renewed=b"".join(task_id for task_id in due if task_id not in lost),
            lost=b"".join(lost - cancelled),
            cancelled=b"".join(cancelled),
        )
        self._enqueue_frame(protocol.LEASES_RENEWED_FRAME, msgspec.msgpack.encode(renewals))

    def _enqueue_frame(self, kind: bytes, body: bytes = b"") -> None:
        self._outgoing.put_nowait(encode_frame(kind, body))

    async def _send_frames_forever(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # closed: the worker stops its tasks by its own clock
            while True:
                await loop.sock_sendall(self._socket, await self._outgoing.get())

    # After the end of the worker

    async def _return_leases_and_messages(
        self, held: dict[bytes, LeaseRecord], messages: list[LeasedMessage], killed_for: bytes | None
    ) -> None:
        """Return the tasks and messages of a dead worker, so that other workers can run them at once."""
        start = self._start
        if start is None or (self._orderly_shutdown and not (held or messages)):
            return
        outcomes = [self._build_return_outcome(key, record, killed_for) for key, record in held.items()]
        released = self._orderly_shutdown or killed_for is not None
        deadline = time.monotonic() + LEASE_RETURN_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                async with open_connection(Secret(start.url), self._settings) as connection:
                    for offset in range(0, len(outcomes), MAX_OUTCOMES_PER_CALL):
                        part = outcomes[offset : offset + MAX_OUTCOMES_PER_CALL]
                        await leases.finish_and_claim(
                            connection, worker=start.worker, outcomes=part, slots=0, queues=[]
                        )
                    await return_messages(connection, messages, released=released)
                    if not self._orderly_shutdown:
                        await leases.mark_worker_lost(connection, start.worker)
            except HoldfastError:
                await asyncio.sleep(HEARTBEAT_RETRY_INTERVAL_S)
            else:
                return

    def _build_return_outcome(self, task_id: bytes, record: LeaseRecord, killed_for: bytes | None) -> Outcome:
        lease = record.lease
        error: dict[str, str] | None = None
        kind: leases.OutcomeKind = "release"
        if task_id == killed_for:
            kind = "fail"
            error = {
                "type": "TimeoutError",
                "message": "The task blocked the event loop past its time limit. The worker was killed.",
            }
        elif killed_for is None and not self._orderly_shutdown and not record.is_in_child_process:
            kind = "crash"
            error = {"type": "WorkerLost", "message": "The worker process ended while the task ran in it."}
        return Outcome(
            id=lease.id,
            attempt=lease.attempt,
            nonce=lease.nonce,
            kind=kind,
            body=None if error is None else msgspec.json.encode(error),
        )


def _read_process_state(pid: int) -> str | None:
    """Return the state letter of a process from /proc, or None where the system has no /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[0]


def main() -> None:
    """Run the heartbeat process. The arguments are descriptors: the socket and the shared memory."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # sent to the worker; this process ends with it
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.setblocking(False)
    loop_timestamp = LoopTimestamp(int(sys.argv[2]))

    async def run_process() -> None:
        await HeartbeatProcess(connection, loop_timestamp).run()
        os._exit(0)  # do not wait for threads or connections that hang

    asyncio.run(run_process())
