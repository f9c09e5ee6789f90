"""Frames between worker and heartbeat process are about leases, not about tasks."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from holdfast.definitions.tasks import task
from holdfast.engine import leases
from holdfast.engine.leases import HeartbeatResponse, LeasedTask, Outcome
from holdfast.errors import DatabaseUnavailableError
from holdfast.settings import Secret, Settings
from holdfast.testing import wait_until
from holdfast.worker import heartbeat_process
from holdfast.worker import heartbeat_protocol as protocol
from holdfast.worker.attempts import STOP_REASON_UNRENEWED, Attempt, RunningAttempts
from holdfast.worker.context import TaskContext
from holdfast.worker.framing import FrameDecoder, encode_frame
from holdfast.worker.heartbeat import Heartbeat
from holdfast.worker.heartbeat_process import HeartbeatProcess
from holdfast.worker.heartbeat_protocol import LeaseRenewals
from holdfast.worker.lease_record import LeaseRecord
from holdfast.worker.lease_return import build_return_outcomes
from holdfast.worker.messages.visibility import VisibilityRenewalClient


@task
async def does_nothing() -> None:
    pass


def build_lease(task_id: UUID, attempt: int) -> LeasedTask:
    return LeasedTask(
        id=task_id, attempt=attempt, nonce=attempt * 1000, job_id=None, name=None, type="t", queue="q",
        args={}, parents={}, suspect=False, lease_s=2.0, timeout_s=60, max_attempts=5,
    )  # fmt: skip


# The worker's side


@pytest.fixture
def running() -> RunningAttempts:
    return RunningAttempts(lambda: None)


@pytest.fixture
def heartbeat(running: RunningAttempts) -> Heartbeat:
    return Heartbeat(Secret("postgresql://x"), Settings(), "w", running, VisibilityRenewalClient(list))


def add_attempt(running: RunningAttempts, claimed: LeasedTask) -> Attempt:
    context = TaskContext(task_id="t", job_id="j", attempt=claimed.attempt, deadline=datetime.now(UTC))
    attempt = Attempt(claimed, does_nothing, context, started_at=0.0, renewed_at=0.0)
    running.add_attempt(attempt)
    return attempt


@pytest.mark.parametrize("field", ["renewed", "lost", "cancelled"])
async def test_late_answer_about_one_attempt_does_not_touch_the_next(
    heartbeat: Heartbeat, running: RunningAttempts, field: str
) -> None:
    old, new = build_lease(task_id := uuid4(), 1), build_lease(task_id, 2)
    attempt = add_attempt(running, new)
    answer: Any = {field: protocol.encode_lease_key(old)}
    body = msgspec.msgpack.encode(LeaseRenewals(sent_at=5.0, **answer))
    heartbeat._handle_frame(protocol.LEASES_RENEWED_FRAME_TYPE, body)
    assert (attempt.stop_reason, attempt.renewed_at) == (None, 0.0)
    answer = {field: protocol.encode_lease_key(new)}
    body = msgspec.msgpack.encode(LeaseRenewals(sent_at=5.0, **answer))
    heartbeat._handle_frame(protocol.LEASES_RENEWED_FRAME_TYPE, body)
    assert (attempt.stop_reason is None, attempt.renewed_at) == (
        field == "renewed",
        5.0 * (field == "renewed"),
    )


async def test_given_up_leases_are_released(heartbeat: Heartbeat, running: RunningAttempts) -> None:
    old, new = build_lease(task_id := uuid4(), 1), build_lease(task_id, 2)
    given_up, kept = add_attempt(running, old), add_attempt(running, new)
    heartbeat._handle_frame(protocol.LEASES_GIVEN_UP_FRAME_TYPE, protocol.encode_lease_keys([old]))
    assert (given_up.stop_reason, kept.stop_reason) == (STOP_REASON_UNRENEWED, None)


async def test_renewal_is_reported_to_the_host_of_the_attempt(
    heartbeat: Heartbeat, running: RunningAttempts
) -> None:
    attempt = add_attempt(running, build_lease(uuid4(), 1))
    renewed: list[Attempt] = []
    attempt.on_renewed = renewed.append
    body = LeaseRenewals(sent_at=5.0, renewed=protocol.encode_lease_key(attempt.claimed))
    heartbeat._handle_frame(protocol.LEASES_RENEWED_FRAME_TYPE, msgspec.msgpack.encode(body))
    assert renewed == [attempt]


# The side of the heartbeat process


class FakeDatabase:
    """Answers renewals when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: asyncio.Queue[tuple[list[Any], asyncio.Future[HeartbeatResponse]]] = asyncio.Queue()
        self.connections = self.opened = 0
        self.refuses_connections = False
        monkeypatch.setattr(leases, "heartbeat_tasks", self.heartbeat_tasks)
        monkeypatch.setattr(heartbeat_process, "open_connection", self.open_connection)

    async def heartbeat_tasks(self, _: object, *, held: list[Any], **__: Any) -> HeartbeatResponse:
        response: asyncio.Future[HeartbeatResponse] = asyncio.get_running_loop().create_future()
        self.requests.put_nowait((held, response))
        return await response

    def open_connection(self, *_: Any) -> FakeDatabase:
        return self

    async def __aenter__(self) -> None:
        if self.refuses_connections:
            raise DatabaseUnavailableError("too many clients")
        self.connections += 1
        self.opened += 1

    async def __aexit__(self, *_: object) -> None:
        self.connections -= 1


class ProcessUnderTest:
    """A heartbeat process in the test's own process, with the test as its worker."""

    def __init__(self, process: HeartbeatProcess, worker_end: socket.socket) -> None:
        self.process = process
        self._socket = worker_end
        self._frames = FrameDecoder()

    def send(self, *frames: bytes) -> None:
        self._socket.send(b"".join(frames))

    def end_worker(self) -> None:
        """Close the socket and report the end of the worker, as the operating system does."""
        self._socket.close()
        monitor: Any = self.process._monitor
        monitor._handle_end()

    async def receive(self, kind: bytes) -> bytes:
        """Return the body of the next frame of this kind."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(30):
            while True:
                for received, body in self._frames.feed(await loop.sock_recv(self._socket, 1 << 16)):
                    if received == kind:
                        return body


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> FakeDatabase:
    return FakeDatabase(monkeypatch)


@pytest.fixture
async def under_test(
    database: FakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[ProcessUnderTest]:
    monkeypatch.setattr(HeartbeatProcess, "_is_worker_dead", lambda _: False)
    monkeypatch.setattr(HeartbeatProcess, "_is_worker_stopped", lambda _: False)
    monkeypatch.setattr(HeartbeatProcess, "_kill_blocked_worker", lambda _: None)
    worker_end, process_end = socket.socketpair()
    for end in (worker_end, process_end):
        end.setblocking(False)
    process: Any = HeartbeatProcess(process_end, None)  # type: ignore[arg-type]
    running = asyncio.create_task(process.run())
    start = protocol.HeartbeatStartMessage(
        url="postgresql://x", worker="w", pid=1, connect_timeout_s=1, call_timeout_s=1, log_format="text",
        loop_blocked_after_s=2,
    )  # fmt: skip
    created = ProcessUnderTest(process, worker_end)
    created.send(encode_frame(protocol.START_FRAME_TYPE, msgspec.msgpack.encode(start)))
    yield created
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    worker_end.close()
    process_end.close()


async def test_response_about_an_old_lease_keeps_the_new_one(
    under_test: ProcessUnderTest, database: FakeDatabase
) -> None:
    """The task fails and is claimed again while the renewal of its first lease is on its way."""
    old, new = build_lease(task_id := uuid4(), 1), build_lease(task_id, 2)
    under_test.send(protocol.encode_leases([(old, protocol.PLACE_WORKER)], time.monotonic() - 1.0))
    held, response = await database.requests.get()
    assert held == [old.lease]
    under_test.send(
        encode_frame(protocol.DROP_LEASES_FRAME_TYPE, protocol.encode_lease_keys([old])),
        protocol.encode_leases([(new, protocol.PLACE_WORKER)], time.monotonic()),
        encode_frame(protocol.PING_FRAME_TYPE),
    )
    await under_test.receive(protocol.PONG_FRAME_TYPE)
    response.set_result(HeartbeatResponse(lost=frozenset([old.lease])))
    body = await under_test.receive(protocol.LEASES_RENEWED_FRAME_TYPE)
    renewals = msgspec.msgpack.decode(body, type=LeaseRenewals)
    assert (renewals.renewed, renewals.lost) == (b"", protocol.encode_lease_key(old))
    held, response = await database.requests.get()
    assert held == [new.lease]
    response.set_result(HeartbeatResponse())


async def test_two_leases_of_one_task_are_renewed_apart(
    under_test: ProcessUnderTest, database: FakeDatabase
) -> None:
    old, new = build_lease(task_id := uuid4(), 1), build_lease(task_id, 2)
    in_worker = [(old, protocol.PLACE_WORKER), (new, protocol.PLACE_WORKER)]
    under_test.send(protocol.encode_leases(in_worker, time.monotonic() - 1.0))
    held, response = await database.requests.get()
    assert held == [old.lease, new.lease]
    response.set_result(HeartbeatResponse(lost=frozenset([old.lease])))
    body = await under_test.receive(protocol.LEASES_RENEWED_FRAME_TYPE)
    renewals = msgspec.msgpack.decode(body, type=LeaseRenewals)
    assert renewals.renewed == protocol.encode_lease_key(new)
    assert renewals.lost == protocol.encode_lease_key(old)


@pytest.fixture
async def idle(
    under_test: ProcessUnderTest, database: FakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> ProcessUnderTest:
    """A heartbeat process that was connected and has closed its connection."""
    monkeypatch.setattr(heartbeat_process, "MAX_IDLE_CONNECTION_S", 0.05)
    await under_test.receive(protocol.READY_FRAME_TYPE)
    await wait_until(lambda: database.connections == 0)
    return under_test


async def test_idle_process_has_no_connection_and_reconnects_before_a_renewal_is_due(
    idle: ProcessUnderTest, database: FakeDatabase
) -> None:
    lease = build_lease(uuid4(), 1)
    received_at = time.monotonic()
    idle.send(protocol.encode_leases([(lease, protocol.PLACE_WORKER)], received_at))
    await wait_until(lambda: database.connections == 1)
    record: LeaseRecord = next(iter(idle.process._leases.values()))
    assert received_at < record.connect_due_at < record.renewal_due_at
    held, response = await database.requests.get()
    assert held == [lease.lease]
    response.set_result(HeartbeatResponse())
    # Held for longer than the connection may be idle: it stays.
    await database.requests.get()
    assert (database.connections, database.opened) == (1, 2)


async def test_process_without_a_connection_tries_until_the_server_accepts_it(
    idle: ProcessUnderTest, database: FakeDatabase
) -> None:
    database.refuses_connections = True
    lease = build_lease(uuid4(), 1)
    idle.send(protocol.encode_leases([(lease, protocol.PLACE_WORKER)], time.monotonic() - 1.0))
    await asyncio.sleep(heartbeat_process.HEARTBEAT_RETRY_INTERVAL_S)
    database.refuses_connections = False
    held, _ = await database.requests.get()
    assert held == [lease.lease]


async def test_lease_that_ends_at_once_opens_no_connection(
    idle: ProcessUnderTest, database: FakeDatabase
) -> None:
    lease = build_lease(uuid4(), 1)
    held = protocol.encode_leases([(lease, protocol.PLACE_WORKER)], time.monotonic())
    idle.send(held, encode_frame(protocol.DROP_LEASES_FRAME_TYPE, protocol.encode_lease_keys([lease])))
    for _ in range(3):
        idle.send(encode_frame(protocol.PING_FRAME_TYPE))
        await idle.receive(protocol.PONG_FRAME_TYPE)
    assert idle.process._connect_at == float("inf")
    assert database.opened == 1


async def test_status_of_an_idle_worker_is_stored(
    idle: ProcessUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def heartbeat_worker(_: object, __: str, status: dict[str, Any]) -> str:
        statuses.put_nowait(status)
        return "drain"

    monkeypatch.setattr(leases, "heartbeat_worker", heartbeat_worker)
    idle.send(encode_frame(protocol.WORKER_STATUS_FRAME_TYPE, b'{"slots": 1}'))
    assert await statuses.get() == {"slots": 1}
    assert await idle.receive(protocol.COMMAND_FRAME_TYPE) == b"drain"


# After the end of the worker


async def test_frames_that_a_worker_sent_right_before_its_death_count(
    under_test: ProcessUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    returned: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()

    async def return_leases(_: object, __: object, outcomes: list[Outcome], *___: Any, **____: Any) -> None:
        returned.set_result(outcomes)

    monkeypatch.setattr(heartbeat_process, "return_leases_and_messages", return_leases)
    under_test.send(encode_frame(protocol.PING_FRAME_TYPE))
    await under_test.receive(protocol.PONG_FRAME_TYPE)
    lease = build_lease(uuid4(), 1)
    under_test.send(protocol.encode_leases([(lease, protocol.PLACE_CHILD)], time.monotonic()))
    monkeypatch.setattr(HeartbeatProcess, "_is_worker_dead", lambda _: True)
    under_test.end_worker()  # before the process has read the frame
    async with asyncio.timeout(30):
        [outcome] = await returned
    assert (outcome.lease, outcome.kind) == (lease.lease, "lost")


def read_outcomes(*places: int, **how: Any) -> list[tuple[str, Any]]:
    options: dict[str, Any] = {"orderly": False, "culprit": None, "holds_messages": False, **how}
    keys = {protocol.encode_lease_key(build_lease(UUID(int=n), 1)): place for n, place in enumerate(places)}
    outcomes = build_return_outcomes(keys, **options)
    return [(o.kind, o.body and msgspec.json.decode(o.body).get("suspect")) for o in outcomes]


IN_CHILD, IN_WORKER, ONLY_WORKER = protocol.PLACE_CHILD, protocol.PLACE_WORKER, protocol.PLACE_WORKER_ONLY


def test_death_of_the_worker_makes_suspects_of_tasks_in_its_own_process() -> None:
    assert read_outcomes(IN_CHILD, IN_WORKER) == [("lost", False), ("lost", True)]
    assert read_outcomes(ONLY_WORKER, IN_WORKER) == [("lost", True), ("lost", True)]


def test_only_a_task_that_was_alone_and_cannot_be_isolated_is_charged() -> None:
    assert read_outcomes(ONLY_WORKER, IN_CHILD) == [("crash", None), ("lost", False)]
    assert read_outcomes(ONLY_WORKER, holds_messages=True) == [("lost", True)]
    assert read_outcomes(IN_WORKER) == [("lost", True)]


def test_shutdown_and_blocked_loop_release_the_other_tasks() -> None:
    assert read_outcomes(IN_CHILD, IN_WORKER, orderly=True) == [("release", None)] * 2
    culprit = protocol.encode_lease_key(build_lease(UUID(int=1), 1))
    assert read_outcomes(IN_WORKER, IN_WORKER, culprit=culprit) == [("release", None), ("fail", None)]
