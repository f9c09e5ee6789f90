"""The heartbeat process: renews the leases of one worker, whatever user code does to that worker.

It is a separate process, so neither a blocked event loop nor a C call that holds the GIL can starve it. It
renews while the worker is alive, and it learns that from the operating system: it does not renew for a
stopped process (SIGSTOP, a debugger), and it does renew for a busy one. Children of a stopped worker are
killed before their leases end, because another worker may run their tasks after that. It ends with its
worker, however that ends: it ends the worker's children and their process groups, and then returns at once
what the worker still held (lease_return.py).

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

import msgspec

from holdfast.engine import leases
from holdfast.engine.connection import Connection, open_connection
from holdfast.errors import DatabaseUnavailableError, HoldfastError
from holdfast.settings import Secret, Settings
from holdfast.worker import heartbeat_protocol as protocol
from holdfast.worker.framing import FrameDecoder, encode_frame
from holdfast.worker.heartbeat_protocol import HeartbeatStartMessage, LeaseRenewals, SharedLoopTimestamp
from holdfast.worker.lease_record import RENEW_AFTER_LEASE_SHARE, LeaseRecord
from holdfast.worker.lease_return import build_return_outcomes, return_leases_and_messages
from holdfast.worker.messages.renewal import MAX_IDLE_CONNECTION_S, MessageRenewer
from holdfast.worker.process_groups import end_process_groups, kill_process_group
from holdfast.worker.renewal_table import RenewalTable
from holdfast.worker.worker_monitor import WorkerMonitor

HEARTBEAT_RETRY_INTERVAL_S = 0.2
IDLE_CHECK_INTERVAL_S = 1.0  # while the worker holds no lease and has no child
TIME_LIMIT_GRACE_S = 2.0  # the worker may stop a task itself for this long after the task's time limit
CHILD_KILL_MARGIN_S = 0.3  # before its lease ends, the child of a stopped worker is killed
PROCESSES_EXIT_TIMEOUT_S = 2.0  # for a dead worker's children and their process groups


class HeartbeatProcess:
    """Renews leases and message visibility for one worker until that worker ends."""

    def __init__(self, connection: socket.socket, loop_timestamp: SharedLoopTimestamp) -> None:
        self._socket = connection
        self._loop_timestamp = loop_timestamp
        self.renewal_table: RenewalTable | None = None
        self._frames = FrameDecoder()
        self._leases: dict[bytes, LeaseRecord] = {}  # by lease key
        self._children: set[int] = set()  # pids, each the leader of a process group
        self._next_renewal_at = float("inf")
        self._connect_at = 0.0  # when a connection is needed, while there is none
        self._renew_all_at = float("inf")
        self._blocking_task: bytes | None = None
        self._worker_status: bytes | None = None
        self._orderly_shutdown = False
        self._closed = asyncio.Event()  # the worker and its children have all closed their end of the socket
        self._monitor: WorkerMonitor | None = None
        self._ended = asyncio.Event()  # the worker has ended, or the socket is closed
        self._wakeup = asyncio.Event()
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._start: HeartbeatStartMessage | None = None
        self._started: asyncio.Future[HeartbeatStartMessage] = asyncio.get_running_loop().create_future()
        self._settings = Settings()
        self._messages = MessageRenewer(self._enqueue_frame, lambda: not self._is_worker_stopped())
        self._frame_handlers: dict[bytes, Callable[[bytes], None]] = {
            protocol.START_FRAME_TYPE: self._on_start,
            protocol.HOLD_LEASES_FRAME_TYPE: self._on_hold_leases,
            protocol.DROP_LEASES_FRAME_TYPE: self._on_drop_leases,
            protocol.RENEW_NOW_FRAME_TYPE: self._on_renew_now,
            protocol.HOLD_MESSAGES_FRAME_TYPE: self._messages.handle_hold_frame,
            protocol.DROP_MESSAGES_FRAME_TYPE: self._messages.handle_stop_renewing_frame,
            protocol.LOOP_BLOCKED_FRAME_TYPE: self._on_blocking_task,
            protocol.WORKER_STATUS_FRAME_TYPE: self._on_worker_status,
            protocol.SHUTDOWN_FRAME_TYPE: self._on_shutdown,
            protocol.PING_FRAME_TYPE: lambda _: self._enqueue_frame(protocol.PONG_FRAME_TYPE),
            protocol.CHILD_STARTED_FRAME_TYPE: lambda body: self._children.add(protocol.decode_pid(body)),
            protocol.CHILD_ENDED_FRAME_TYPE: lambda body: self._children.discard(protocol.decode_pid(body)),
        }

    async def run(self) -> None:
        """Renew leases until the worker ends, then return the leases that the worker still held."""
        asyncio.get_running_loop().add_reader(self._socket, self._read_frames)
        loops = (self._renew_leases_forever(), self._renew_messages_forever(), self._send_frames_forever())
        tasks = [asyncio.create_task(loop) for loop in loops]
        culprit: bytes | None = None
        while not (self._closed.is_set() or (self._monitor is not None and self._monitor.has_ended)):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._worker_check_interval_s):
                    await self._ended.wait()
            culprit = culprit or self._kill_blocked_worker()
            self._kill_children_of_stopped_worker()
        while not self._closed.is_set() and self._read_frames():  # what the worker sent before it ended
            pass
        held, self._leases = self._leases, {}
        for task in tasks:
            task.cancel()
        # Bounded, because a library may swallow a cancellation that arrives together with a result.
        await asyncio.wait(tasks, timeout=HEARTBEAT_RETRY_INTERVAL_S)
        await self._return_what_the_worker_held(held, culprit)

    async def _return_what_the_worker_held(
        self, held: dict[bytes, LeaseRecord], culprit: bytes | None
    ) -> None:
        start, orderly = self._start, self._orderly_shutdown
        messages = self._messages.take_all_messages()
        if start is None or (orderly and not (held or messages)):
            return
        # Code that the worker could not stop ends only with the worker.
        while orderly and not self._is_worker_dead():  # noqa: ASYNC110
            await asyncio.sleep(HEARTBEAT_RETRY_INTERVAL_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PROCESSES_EXIT_TIMEOUT_S):
                await self._wait_for_processes_to_end()
        places = {key: record.place for key, record in held.items()}
        await return_leases_and_messages(
            start,
            self._settings,
            build_return_outcomes(places, orderly=orderly, culprit=culprit, holds_messages=bool(messages)),
            messages,
            orderly=orderly,
            released=orderly or culprit is not None,
        )

    async def _wait_for_processes_to_end(self) -> None:
        """Wait until the worker has ended, then end its children and their process groups.

        Then nothing that the worker started still runs when another worker starts the same tasks.
        """
        while not self._is_worker_dead():  # noqa: ASYNC110  (its sockets close a moment before)
            await asyncio.sleep(0.01)
        await end_process_groups(self._children)
        # A child whose start the worker did not report has inherited the socket.
        await self._closed.wait()

    # Frames from the worker

    def _read_frames(self) -> bool:
        """Handle the frames that have arrived. Return whether there were any."""
        try:
            received = self._socket.recv(1 << 20)
        except BlockingIOError:
            return False
        except OSError:
            received = b""
        if not received:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._closed.set()
            self._ended.set()
            self._wakeup.set()
            return False
        for kind, body in self._frames.feed(received):
            self._frame_handlers[kind](body)
        return True

    def _on_start(self, body: bytes) -> None:
        self._start = start = msgspec.msgpack.decode(body, type=HeartbeatStartMessage)
        if not self._started.done():
            self._started.set_result(start)
        self._monitor = WorkerMonitor(start.pid, self._ended.set)
        self._settings = Settings(
            connect_timeout=timedelta(seconds=start.connect_timeout_s),
            call_timeout=timedelta(seconds=start.call_timeout_s),
        )

    def _on_hold_leases(self, body: bytes) -> None:
        now = time.monotonic()
        (renewed_at,) = protocol.INSTANT_STRUCT.unpack_from(body)
        next_renewal_at = float("inf")
        for record in protocol.LEASE_RECORD_STRUCT.iter_unpack(
            memoryview(body)[protocol.INSTANT_STRUCT.size :]
        ):
            lease = self._leases[record[0]] = LeaseRecord(record, now, renewed_at)
            next_renewal_at = min(next_renewal_at, lease.renewal_due_at)
        if next_renewal_at < self._next_renewal_at:
            self._next_renewal_at = next_renewal_at
            self._wakeup.set()
        if self._connect_at == float("inf"):
            self._wakeup.set()

    def _on_drop_leases(self, body: bytes) -> None:
        for key in protocol.split_lease_keys(body):
            self._leases.pop(key, None)

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

    @property
    def _worker_check_interval_s(self) -> float:
        """How often to check the worker. Its end is noticed at once in any case."""
        return HEARTBEAT_RETRY_INTERVAL_S if self._leases or self._children else IDLE_CHECK_INTERVAL_S

    def _is_worker_dead(self) -> bool:
        return self._monitor is not None and self._monitor.is_dead

    def _is_worker_stopped(self) -> bool:
        return self._monitor is not None and self._monitor.is_stopped

    def _kill_blocked_worker(self) -> bytes | None:
        """Kill a worker whose event loop a task blocks past its time limit. Return the task's lease key."""
        start, now = self._start, time.monotonic()
        blocked_s = now - self._loop_timestamp.read_instant()
        if start is None or blocked_s < start.loop_blocked_after_s or self._is_worker_stopped():
            return None
        overdue = {
            key: record
            for key, record in self._leases.items()
            if not record.is_in_child_process and now > record.time_limit_at + TIME_LIMIT_GRACE_S
        }
        if self._blocking_task in self._leases:
            overdue = {key: record for key, record in overdue.items() if key == self._blocking_task}
        if not overdue or self._is_worker_dead():
            return None
        culprit = min(overdue, key=lambda key: overdue[key].time_limit_at)
        self._log_error(
            f"Task {overdue[culprit].lease.id} has blocked the event loop for {blocked_s:.1f} s"
            f" and is past its time limit. Killing worker process {start.pid}."
        )
        os.kill(start.pid, signal.SIGKILL)
        return culprit

    def _kill_children_of_stopped_worker(self) -> None:
        """Kill the children of a stopped worker before their leases end. Their tasks may run elsewhere then.

        The lease guard does the same for each child; this is for the case that it has failed. The leases of
        all children are given up, because only the worker knows which child runs which task. The worker
        receives these leases when it continues, and charges nothing.
        """
        if not self._children or not self._is_worker_stopped():
            return
        now = time.monotonic()
        in_children = {key: record for key, record in self._leases.items() if record.is_in_child_process}
        if any(now >= r.renewed_at + r.lease_duration_s - CHILD_KILL_MARGIN_S for r in in_children.values()):
            for pid in self._children:
                kill_process_group(pid)
            for key in in_children:
                del self._leases[key]
            self._enqueue_frame(protocol.LEASES_GIVEN_UP_FRAME_TYPE, b"".join(in_children))

    def _log_error(self, message: str) -> None:
        if self._start is not None and self._start.log_format == "json":
            record = {"level": "error", "event": "worker.killed", "error": message}
            message = msgspec.json.encode(record).decode()
        sys.stderr.write(message + "\n")
        sys.stderr.flush()

    # Renewals

    async def _renew_leases_forever(self) -> None:
        start = await self._started
        was_connected = False  # the worker waits for the first connection before it claims tasks
        while True:
            if was_connected:
                await self._wait_until_connection_is_needed()
            try:
                async with open_connection(Secret(start.url), self._settings) as connection:
                    was_connected = True
                    self._enqueue_frame(protocol.READY_FRAME_TYPE)
                    await self._renew_until_idle(connection, start)
                    continue
            except DatabaseUnavailableError:
                pass  # the worker notices and reports it
            except Exception as error:  # renewing must go on after any error
                text = str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
                self._enqueue_frame(protocol.DATABASE_PROBLEM_FRAME_TYPE, text.encode())
            await asyncio.sleep(HEARTBEAT_RETRY_INTERVAL_S)

    async def _wait_until_connection_is_needed(self) -> None:
        """Wait while no lease may have to be renewed: an idle worker needs no connection."""
        while True:
            connect_times = (record.connect_due_at for record in self._leases.values())
            self._connect_at = min(min(connect_times, default=float("inf")), self._renew_all_at)
            if self._worker_status is not None or time.monotonic() >= self._connect_at:
                self._connect_at = 0.0
                return
            await self._wait_for_wakeup(self._connect_at - time.monotonic())

    async def _renew_messages_forever(self) -> None:
        start = await self._started
        await self._messages.renew_forever(Secret(start.url), self._settings)

    async def _renew_until_idle(self, connection: Connection, start: HeartbeatStartMessage) -> None:
        """Renew leases until the worker has held none for a while."""
        used_at = time.monotonic()
        while self._leases or self._worker_status or time.monotonic() < used_at + MAX_IDLE_CONNECTION_S:
            if self._leases or self._worker_status:
                used_at = time.monotonic()
            if self._worker_status is not None:
                status, self._worker_status = self._worker_status, None
                command = await leases.heartbeat_worker(connection, start.worker, msgspec.json.decode(status))
                if command is not None:
                    self._enqueue_frame(protocol.COMMAND_FRAME_TYPE, command.encode())
            if time.monotonic() >= self._next_renewal_at:
                if self._is_worker_stopped():
                    await asyncio.sleep(HEARTBEAT_RETRY_INTERVAL_S)
                    continue
                await self._renew_due_leases(connection, start)
            if self._worker_status is None:
                idle_at = used_at + MAX_IDLE_CONNECTION_S
                await self._wait_for_wakeup(min(self._next_renewal_at, idle_at) - time.monotonic())

    async def _wait_for_wakeup(self, timeout_s: float) -> None:
        """Wait until the worker sends a frame, at most `timeout_s`."""
        self._wakeup.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._wakeup.wait()

    async def _renew_due_leases(self, connection: Connection, start: HeartbeatStartMessage) -> None:
        """Renew the leases whose renewal is due or will be due soon."""
        now = time.monotonic()
        renew_all, self._renew_all_at = now >= self._renew_all_at, float("inf")
        due = {
            key: record
            for key, record in self._leases.items()
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
        lost = {protocol.encode_lease_key(lease) for lease in response.lost}
        cancelled = {protocol.encode_lease_key(lease) for lease in response.cancelled}
        for key, record in due.items():
            if self._leases.get(key) is record:  # else it was dropped
                self._leases[key] = record._replace(renewed_at=now)
                if key in lost:
                    del self._leases[key]
        if self.renewal_table is not None:
            renewed = (key for key, record in due.items() if record.is_in_child_process and key not in lost)
            self.renewal_table.record_renewals(renewed, now)
        renewals = LeaseRenewals(
            sent_at=now,
            renewed=b"".join(key for key in due if key not in lost),
            lost=b"".join(lost - cancelled),
            cancelled=b"".join(cancelled),
        )
        self._enqueue_frame(protocol.LEASES_RENEWED_FRAME_TYPE, msgspec.msgpack.encode(renewals))

    def _enqueue_frame(self, kind: bytes, body: bytes = b"") -> None:
        self._outgoing.put_nowait(encode_frame(kind, body))

    async def _send_frames_forever(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # closed: the worker stops its tasks by its own clock
            while True:
                await loop.sock_sendall(self._socket, await self._outgoing.get())


def main() -> None:
    """Run the heartbeat process. The arguments are descriptors: the socket and the shared memory."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # sent to the worker; this process ends with it
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.setblocking(False)
    memory_descriptor = int(sys.argv[2])

    async def run_process() -> None:
        process = HeartbeatProcess(connection, SharedLoopTimestamp(memory_descriptor))
        process.renewal_table = RenewalTable(memory_descriptor)
        await process.run()
        os._exit(0)  # do not wait for threads or connections that hang

    asyncio.run(run_process())
