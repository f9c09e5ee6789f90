"""The protocol between a worker and its heartbeat process.

Both send frames (framing.py) over a socket pair. Leases travel as fixed-size records because every task
passes here. Everything else is rare and is encoded as msgpack. Instants are readings of the monotonic clock,
which all processes of a machine share.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable
from typing import Final

import msgspec

from holdfast.engine.leases import LeasedTask
from holdfast.worker.framing import encode_frame

# From the worker to the heartbeat process.
START: Final = b"S"  # HeartbeatStart
HOLD_LEASES: Final = b"H"  # the instant of the last renewal, then lease records
DROP_LEASES: Final = b"D"  # 16-byte task ids
BLOCKING_TASK: Final = b"B"  # the id of the task that blocks the event loop, or nothing
WORKER_STATUS: Final = b"A"  # JSON that the worker reports about itself
RENEW_NOW: Final = b"N"
SHUTDOWN: Final = b"E"  # with a body: the worker holds nothing any more
HOLD_MESSAGES: Final = b"M"  # a list of LeasedMessage
DROP_MESSAGES: Final = b"L"  # 8-byte message numbers

# From the heartbeat process to the worker.
READY: Final = b"O"  # connected to the database
LEASES_RENEWED: Final = b"R"  # LeaseRenewals
MESSAGES_RENEWED: Final = b"V"  # MessageRenewals
DATABASE_PROBLEM: Final = b"W"  # an error message
COMMAND: Final = b"C"  # a command that an operator sent to this worker

LEASE_STRUCT = struct.Struct("<16sqiffB")  # task id, nonce, attempt, lease_s, timeout_s, in_child_process
INSTANT = struct.Struct("<d")
MESSAGE_NUMBER = struct.Struct("<q")
TASK_ID_BYTES = 16


class LoopTimestamp:
    """The instant at which the worker's event loop last ran, in memory that both processes share."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, mmap.PAGESIZE)

    def write(self, instant: float) -> None:
        INSTANT.pack_into(self._memory, 0, instant)

    def read(self) -> float:
        instant: float = INSTANT.unpack_from(self._memory, 0)[0]
        return instant


class HeartbeatStart(msgspec.Struct, frozen=True, kw_only=True):
    """What the heartbeat process needs to know before it can renew anything."""

    url: str
    worker: str
    pid: int
    connect_timeout_s: float
    call_timeout_s: float
    log_format: str
    loop_blocked_after_s: float


class LeaseRenewals(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one renewal request that was sent at `sent_at`. Ids are 16 bytes each."""

    sent_at: float
    renewed: bytes = b""
    lost: bytes = b""
    cancelled: bytes = b""


class LeasedMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message that a consumer processes. The worker assigns the number."""

    number: int
    queue: str
    receipt: str
    vt_s: float
    read_at: float

    @property
    def id(self) -> int:
        return int(self.receipt.partition(".")[0])


class MessageRenewals(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of messages whose visibility was renewed, that were lost, or that are no longer renewed."""

    sent_at: float
    renewed: list[int] = []
    lost: list[int] = []
    dropped: list[int] = []


def encode_leases(tasks: Iterable[tuple[LeasedTask, bool]], renewed_at: float) -> bytes:
    """Encode claimed tasks, each with whether it runs in a child process, as a HOLD_LEASES frame."""
    pack = LEASE_STRUCT.pack
    records = [
        pack(task.id.bytes, task.nonce, task.attempt, task.lease_s, task.timeout_s, in_child_process)
        for task, in_child_process in tasks
    ]
    return encode_frame(HOLD_LEASES, INSTANT.pack(renewed_at) + b"".join(records))


def split_task_ids(body: bytes) -> list[bytes]:
    return [body[start : start + TASK_ID_BYTES] for start in range(0, len(body), TASK_ID_BYTES)]


def encode_message_numbers(numbers: Iterable[int]) -> bytes:
    return b"".join([MESSAGE_NUMBER.pack(number) for number in numbers])


def decode_message_numbers(body: bytes) -> list[int]:
    return [number for (number,) in MESSAGE_NUMBER.iter_unpack(body)]
