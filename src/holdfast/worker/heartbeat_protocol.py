"""The protocol between a worker and its heartbeat process.

Both send frames (framing.py) over a socket pair. Leases travel as fixed-size records because every task
passes here. Everything else is rare and is encoded as msgpack. A frame about a task always carries the lease
of one attempt, as a lease key of 28 bytes: a late message about one attempt must not touch the next attempt
of the same task. Instants are readings of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable
from typing import Final
from uuid import UUID

import msgspec

from holdfast.engine.leases import Lease, LeasedTask
from holdfast.worker.framing import encode_frame

# From the worker to the heartbeat process.
START_FRAME_TYPE: Final = b"S"  # HeartbeatStartMessage
HOLD_LEASES_FRAME_TYPE: Final = b"H"  # the instant of the last renewal, then lease records
DROP_LEASES_FRAME_TYPE: Final = b"D"  # lease keys
LOOP_BLOCKED_FRAME_TYPE: Final = b"B"  # the lease key of the task that blocks the event loop, or nothing
WORKER_STATUS_FRAME_TYPE: Final = b"A"  # JSON that the worker reports about itself
RENEW_NOW_FRAME_TYPE: Final = b"N"
SHUTDOWN_FRAME_TYPE: Final = b"E"  # with a body: the worker holds nothing any more
PING_FRAME_TYPE: Final = b"P"
CHILD_STARTED_FRAME_TYPE: Final = b"F"  # the pid of a child process, which leads a process group
CHILD_ENDED_FRAME_TYPE: Final = b"G"  # the pid of a child process
HOLD_MESSAGES_FRAME_TYPE: Final = b"M"  # a list of LeasedMessage
DROP_MESSAGES_FRAME_TYPE: Final = b"L"  # 8-byte message numbers

# From the heartbeat process to the worker.
READY_FRAME_TYPE: Final = b"O"  # connected to the database
PONG_FRAME_TYPE: Final = b"Q"  # the answer to a ping
LEASES_RENEWED_FRAME_TYPE: Final = b"R"  # LeaseRenewals
LEASES_GIVEN_UP_FRAME_TYPE: Final = b"U"  # lease keys of tasks whose child processes were killed
MESSAGES_RENEWED_FRAME_TYPE: Final = b"V"  # MessageRenewals
DATABASE_PROBLEM_FRAME_TYPE: Final = b"W"  # an error message
COMMAND_FRAME_TYPE: Final = b"C"  # a command that an operator sent to this worker

LEASE_KEY_STRUCT = struct.Struct("<16sqi")  # task id, nonce, attempt
LEASE_STRUCT = struct.Struct("<16sqiffB")  # task id, nonce, attempt, lease_s, timeout_s, place
LEASE_RECORD_STRUCT = struct.Struct("<28sffB")  # the same bytes, read as lease key, lease_s, timeout_s, place
INSTANT_STRUCT = struct.Struct("<d")
MESSAGE_NUMBER_STRUCT = struct.Struct("<q")
PID_STRUCT = struct.Struct("<i")

# Where the code of an attempt runs. It decides what the death of the worker process means for the task.
PLACE_WORKER_ONLY: Final = 0  # in the worker process; no child process can run this type of task
PLACE_CHILD: Final = 1  # in a child process
PLACE_WORKER: Final = 2  # in the worker process; the next attempt can run alone in a child process


class SharedLoopTimestamp:
    """The time when the worker's event loop last ran, in shared memory."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, mmap.PAGESIZE)

    def write_instant(self, instant: float) -> None:
        INSTANT_STRUCT.pack_into(self._memory, 0, instant)

    def read_instant(self) -> float:
        instant: float = INSTANT_STRUCT.unpack_from(self._memory, 0)[0]
        return instant


class HeartbeatStartMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to the heartbeat process: the database URL, the worker and the timeouts."""

    url: str
    worker: str
    pid: int
    connect_timeout_s: float
    call_timeout_s: float
    log_format: str
    loop_blocked_after_s: float


class LeaseRenewals(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one lease renewal: the lease keys of renewed, lost and cancelled tasks."""

    sent_at: float
    renewed: bytes = b""
    lost: bytes = b""
    cancelled: bytes = b""


class LeasedMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message that a consumer processes and the heartbeat process keeps invisible."""

    number: int
    queue: str
    receipt: str
    vt_s: float
    read_at: float

    @property
    def id(self) -> int:
        return int(self.receipt.partition(".")[0])


class MessageRenewals(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one visibility renewal: the numbers of renewed, lost and dropped messages."""

    sent_at: float
    renewed: list[int] = []
    lost: list[int] = []
    dropped: list[int] = []


def encode_leases(tasks: Iterable[tuple[LeasedTask, int]], renewed_at: float) -> bytes:
    """Encode the leases of claimed tasks as a HOLD_LEASES frame. Each task is paired with its place."""
    pack = LEASE_STRUCT.pack
    records = [
        pack(task.id.bytes, task.nonce, task.attempt, task.lease_s, task.timeout_s, place)
        for task, place in tasks
    ]
    return encode_frame(HOLD_LEASES_FRAME_TYPE, INSTANT_STRUCT.pack(renewed_at) + b"".join(records))


def encode_lease_key(lease: Lease) -> bytes:
    return LEASE_KEY_STRUCT.pack(lease.id.bytes, lease.nonce, lease.attempt)


def encode_lease_keys(leases: Iterable[Lease]) -> bytes:
    pack = LEASE_KEY_STRUCT.pack
    return b"".join([pack(lease.id.bytes, lease.nonce, lease.attempt) for lease in leases])


def decode_lease_key(key: bytes) -> Lease:
    task_id, nonce, attempt = LEASE_KEY_STRUCT.unpack(key)
    return Lease(id=UUID(bytes=task_id), attempt=attempt, nonce=nonce)


def split_lease_keys(body: bytes) -> list[bytes]:
    size = LEASE_KEY_STRUCT.size
    return [body[start : start + size] for start in range(0, len(body), size)]


def encode_child_frame(kind: bytes, pid: int) -> bytes:
    return encode_frame(kind, PID_STRUCT.pack(pid))


def decode_pid(body: bytes) -> int:
    return int(PID_STRUCT.unpack(body)[0])


def encode_message_numbers(numbers: Iterable[int]) -> bytes:
    return b"".join([MESSAGE_NUMBER_STRUCT.pack(number) for number in numbers])


def decode_message_numbers(body: bytes) -> list[int]:
    return [number for (number,) in MESSAGE_NUMBER_STRUCT.iter_unpack(body)]
