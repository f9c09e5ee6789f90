"""The heartbeat process: keeps the leases of one worker alive, whatever user code does to that worker.

It is a process of its own, so neither a blocked loop nor a C call that holds the GIL can starve it. It
renews while the worker is alive, which it learns from the system and not from the worker: a process that is
stopped (SIGSTOP, a debugger) is not renewed for, a busy one is. It ends with its worker, however that ends,
and then hands in at once what the worker still held: given back without a charge after an orderly end, as a
crash otherwise; tasks that ran in children of their own are never charged for the end of the worker. Messages
are given back in the same way.

A worker whose loop no longer turns cannot enforce time limits. Then it is killed from here, when the task
that blocks it (or, if nobody knows which, any) is past its limit: that one has failed, its neighbours are
released.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
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
from holdfast.engine.connection import Connection, connected
from holdfast.engine.leases import Lease, Outcome
from holdfast.errors import HoldfastError
from holdfast.settings import Secret, Settings
from holdfast.worker.heartbeat_wire import (
    INSTANT,
    LEASE,
    Frames,
    HeldMessage,
    Kind,
    Round,
    Start,
    frame,
    ids_in,
)
from holdfast.worker.messages.heartbeat import Messages, give_back

TICK = 0.2
SHARE = 0.25  # of a lease, after which it is renewed
OVERTIME = 2.0  # after the time limit, in which the worker may still stop the task itself
LAST_SECONDS = 20.0  # to hand in after the worker's death, if the database is away
CHILDREN_SECONDS = 2.0  # for the worker's own children to be gone, after it


class Held(NamedTuple):
    """A lease as it came over the wire: most are dropped again before anybody looks inside."""

    record: tuple[bytes, int, int, float, float, int]
    told_at: float
    renewed_at: float

    @property
    def lease(self) -> Lease:
        name, nonce, attempt, *_ = self.record
        return Lease(id=UUID(bytes=name), attempt=attempt, nonce=nonce)

    @property
    def lease_s(self) -> float:
        return self.record[3]

    @property
    def deadline(self) -> float:
        return self.told_at + self.record[4]

    @property
    def isolated(self) -> bool:
        return bool(self.record[5])


class Pulse:
    """When the worker's loop turned last, in memory both processes see."""

    def __init__(self, number: int) -> None:
        self._memory = mmap.mmap(number, mmap.PAGESIZE)

    def set(self, at: float) -> None:
        INSTANT.pack_into(self._memory, 0, at)

    def get(self) -> float:
        at: float = INSTANT.unpack_from(self._memory, 0)[0]
        return at


class HeartbeatProcess:
    def __init__(self, connection: socket.socket, pulse: Pulse) -> None:
        self._socket = connection
        self._pulse = pulse
        self._frames = Frames()
        self._held: dict[bytes, Held] = {}
        self._next_due = float("inf")
        self._all_at = float("inf")
        self._blame: bytes | None = None
        self._about: bytes | None = None
        self._orderly = False
        self._closed = asyncio.Event()  # nobody holds the other end: the worker and its children are gone
        self._bell = asyncio.Event()
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._start: Start | None = None
        self._told: asyncio.Future[Start] = asyncio.get_running_loop().create_future()
        self._settings = Settings()
        self._messages = Messages(self._answer, lambda: not self._stopped())
        self._hearing: dict[bytes, Callable[[bytes], None]] = {
            b"S": self._begin, b"H": self._hold, b"D": self._drop, b"N": self._renew_all,
            b"M": self._messages.hold, b"L": self._messages.let_go,
            b"B": self._hear_of_blame, b"A": self._hear_about, b"E": self._hear_the_end,
        }  # fmt: skip

    async def run(self) -> None:
        asyncio.get_running_loop().add_reader(self._socket, self._read)
        parts = (self._beat_for_ever(), self._keep_messages(), self._answer_for_ever())
        work = [asyncio.create_task(part) for part in parts]
        killed: bytes | None = None
        while not (self._closed.is_set() or self._dead()):
            await asyncio.sleep(TICK)
            killed = killed or self._kill_if_it_hangs()
        held, self._held = self._held, {}
        for part in work:
            part.cancel()
        # Not for ever: a library may swallow a cancellation that comes together with what it waits for.
        await asyncio.wait(work, timeout=TICK)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CHILDREN_SECONDS):
                await self._closed.wait()
        messages = self._messages.leave()
        while self._orderly and (held or messages) and not self._dead():  # noqa: ASYNC110  (no event tells)
            await asyncio.sleep(TICK)  # what it could not stop ends with it
        await self._hand_in(held, messages, killed)

    # What the worker says

    def _read(self) -> None:
        try:
            received = self._socket.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._closed.set()
            self._bell.set()
            return
        for kind, body in self._frames.feed(received):
            self._hear(kind, body)

    def _hear(self, kind: bytes, body: bytes) -> None:
        self._hearing[kind](body)

    def _drop(self, body: bytes) -> None:
        for name in ids_in(body):
            self._held.pop(name, None)

    def _hear_of_blame(self, body: bytes) -> None:
        self._blame = body or None

    def _renew_all(self, _: bytes) -> None:
        self._all_at = time.monotonic() if self._held else float("inf")
        self._next_due = min(self._next_due, self._all_at)
        self._bell.set()

    def _hear_about(self, body: bytes) -> None:
        self._about = body
        self._bell.set()

    def _hear_the_end(self, body: bytes) -> None:
        self._orderly = True
        if body:  # nothing is left
            self._held.clear()

    def _begin(self, body: bytes) -> None:
        self._start = start = msgspec.msgpack.decode(body, type=Start)
        if not self._told.done():
            self._told.set_result(start)
        self._settings = Settings(
            connect_timeout=timedelta(seconds=start.connect_timeout_s),
            call_timeout=timedelta(seconds=start.call_timeout_s),
        )

    def _hold(self, body: bytes) -> None:
        now = time.monotonic()
        (renewed_at,) = INSTANT.unpack_from(body)
        shortest = float("inf")
        for record in LEASE.iter_unpack(memoryview(body)[INSTANT.size :]):
            self._held[record[0]] = Held(record, now, renewed_at)
            shortest = min(shortest, record[3])
        if renewed_at + shortest * SHARE < self._next_due:
            self._next_due = renewed_at + shortest * SHARE
            self._bell.set()

    # Whether it lives

    def _dead(self) -> bool:
        return self._start is not None and (
            os.getppid() != self._start.pid or _state(self._start.pid) in {"Z", "X", "x"}
        )

    def _stopped(self) -> bool:
        return self._start is not None and _state(self._start.pid) in {"T", "t"}

    def _kill_if_it_hangs(self) -> bytes | None:
        """The id of the task for which the worker was killed."""
        start, now = self._start, time.monotonic()
        if start is None or self._stopped() or now - self._pulse.get() < start.loop_patience_s:
            return None
        late = {n: h for n, h in self._held.items() if not h.isolated and now > h.deadline + OVERTIME}
        if self._blame in self._held:
            late = {n: h for n, h in late.items() if n == self._blame}
        if not late or self._dead():
            return None
        culprit = min(late, key=lambda name: late[name].deadline)
        blocked = now - self._pulse.get()
        self._tell_people(
            f"task {late[culprit].lease.id} blocks the loop for {blocked:.1f} s and is past its time limit:"
            f" worker process {start.pid} is killed"
        )
        os.kill(start.pid, signal.SIGKILL)
        return culprit

    def _tell_people(self, message: str) -> None:
        if self._start is not None and self._start.log_format == "json":
            message = msgspec.json.encode(
                {"level": "error", "event": "worker.killed", "error": message}
            ).decode()
        sys.stderr.write(message + "\n")
        sys.stderr.flush()

    # Renewals

    async def _beat_for_ever(self) -> None:
        start = await self._told
        while True:
            try:
                async with connected(Secret(start.url), self._settings) as connection:
                    self._answer(b"O")
                    await self._beat_while_connected(connection, start)
            except HoldfastError as problem:
                self._answer(b"W", str(problem).encode())
            except Exception as problem:  # whatever it is, beating goes on
                self._answer(b"W", f"{type(problem).__name__}: {problem}".encode())
            await asyncio.sleep(TICK)

    async def _keep_messages(self) -> None:
        start = await self._told
        await self._messages.keep_for_ever(Secret(start.url), self._settings)

    async def _beat_while_connected(self, connection: Connection, start: Start) -> None:
        while True:
            if self._about is not None:
                about, self._about = self._about, None
                command = await leases.beat_worker(connection, start.worker, msgspec.json.decode(about))
                if command is not None:
                    self._answer(b"C", command.encode())
            if time.monotonic() >= self._next_due:
                if self._stopped():
                    await asyncio.sleep(TICK)
                    continue
                await self._renew(connection, start)
            await self._wait()

    async def _wait(self) -> None:
        """Until something is due or said; at most a tick, so that a stopped worker is seen to go on."""
        if self._about is None and time.monotonic() < self._next_due:
            self._bell.clear()
            pause = max(min(self._next_due - time.monotonic(), 60.0), 0.0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._bell.wait()

    async def _renew(self, connection: Connection, start: Start) -> None:
        """Those that are due, and with them those that soon will be."""
        now = time.monotonic()
        asked, self._all_at = now >= self._all_at, float("inf")
        due = {n: h for n, h in self._held.items() if asked or now >= h.renewed_at + h.lease_s * SHARE / 2}
        if due and (asked or any(now >= h.renewed_at + h.lease_s * SHARE for h in due.values())):
            patience = max(0.5, min(h.renewed_at + h.lease_s for h in due.values()) - now)
            beating = leases.beat(connection, worker=start.worker, held=[h.lease for h in due.values()])
            async with asyncio.timeout(patience):
                answer = await beating
            lost = {i.bytes for i in answer.lost}
            cancelled = {i.bytes for i in answer.cancelled}
            for name, held in due.items():
                if self._held.get(name) is held:  # else it was dropped, or is another attempt by now
                    self._held[name] = held._replace(renewed_at=now)
                    if name in lost:
                        del self._held[name]
            self._answer(
                b"R",
                msgspec.msgpack.encode(
                    Round(
                        sent_at=now,
                        kept=b"".join(name for name in due if name not in lost),
                        lost=b"".join(lost - cancelled),
                        cancelled=b"".join(cancelled),
                    )
                ),
            )
        # Told while we asked: they are among the held, and their time counts too.
        self._next_due = min(
            (held.renewed_at + held.lease_s * SHARE for held in self._held.values()), default=float("inf")
        )
        self._next_due = min(self._next_due, self._all_at)

    def _answer(self, kind: Kind, body: bytes = b"") -> None:
        self._outgoing.put_nowait(frame(kind, body))

    async def _answer_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # closed: the worker stops its tasks by its own clock
            while True:
                await loop.sock_sendall(self._socket, await self._outgoing.get())

    # The end

    async def _hand_in(
        self, left: dict[bytes, Held], messages: list[HeldMessage], killed: bytes | None
    ) -> None:
        """What the dead worker held, so that others need not wait for the leases to run out."""
        start = self._start
        if start is None or (self._orderly and not (left or messages)):
            return
        outcomes = [self._outcome(name, held, killed) for name, held in left.items()]
        released = self._orderly or killed is not None
        until = time.monotonic() + LAST_SECONDS
        while time.monotonic() < until:
            try:
                async with connected(Secret(start.url), self._settings) as connection:
                    for at in range(0, len(outcomes), 500):
                        part = outcomes[at : at + 500]
                        await leases.exchange(
                            connection, worker=start.worker, outcomes=part, slots=0, queues=[]
                        )
                    await give_back(connection, messages, released=released)
                    if not self._orderly:
                        await leases.lose_worker(connection, start.worker)
            except HoldfastError:
                await asyncio.sleep(TICK)
            else:
                return

    def _outcome(self, name: bytes, held: Held, killed: bytes | None) -> Outcome:
        lease = held.lease
        body: dict[str, str] | None = None
        kind: leases.OutcomeKind = "release"
        if name == killed:
            kind = "fail"
            body = {
                "type": "TimeoutError",
                "message": "blocked the event loop past its time limit; the worker was killed",
            }
        elif killed is None and not self._orderly and not held.isolated:
            kind = "crash"
            body = {"type": "WorkerLost", "message": "The worker process ended while the task ran in it."}
        return Outcome(
            id=lease.id,
            attempt=lease.attempt,
            nonce=lease.nonce,
            kind=kind,
            body=None if body is None else msgspec.json.encode(body),
        )


def _state(pid: int) -> str | None:
    """One letter, as the system tells it; None where it does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()[0]


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # meant for the worker; we end with it
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.setblocking(False)
    pulse = Pulse(int(sys.argv[2]))

    async def beat() -> None:
        await HeartbeatProcess(connection, pulse).run()
        os._exit(0)  # whatever still waits for something waits in vain

    asyncio.run(beat())
