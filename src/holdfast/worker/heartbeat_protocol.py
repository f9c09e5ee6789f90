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
START_FRAME: Final = b"S"  # HeartbeatStartMessage
HOLD_LEASES_FRAME: Final = b"H"  # the instant of the last renewal, then lease records
DROP_LEASES_FRAME: Final = b"D"  # 16-byte task ids
BLOCKING_TASK_FRAME: Final = b"B"  # the id of the task that blocks the event loop, or nothing
WORKER_STATUS_FRAME: Final = b"A"  # JSON that the worker reports about itself
RENEW_NOW_FRAME: Final = b"N"
SHUTDOWN_FRAME: Final = b"E"  # with a body: the worker holds nothing any more
HOLD_MESSAGES_FRAME: Final = b"M"  # a list of LeasedMessage
DROP_MESSAGES_FRAME: Final = b"L"  # 8-byte message numbers

# From the heartbeat process to the worker.
READY_FRAME: Final = b"O"  # connected to the database
LEASES_RENEWED_FRAME: Final = b"R"  # LeaseRenewals
MESSAGES_RENEWED_FRAME: Final = b"V"  # MessageRenewals
DATABASE_PROBLEM_FRAME: Final = b"W"  # an error message
COMMAND_FRAME: Final = b"C"  # a command that an operator sent to this worker

LEASE_STRUCT = struct.Struct("<16sqiffB")  # task id, nonce, attempt, lease_s, timeout_s, in_child_process
INSTANT_STRUCT = struct.Struct("<d")
MESSAGE_NUMBER_STRUCT = struct.Struct("<q")
TASK_ID_BYTES = 16


class LoopTimestamp:
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
    """The result of one lease renewal: the 16-byte ids of renewed, lost and cancelled tasks."""

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


def encode_leases(tasks: Iterable[tuple[LeasedTask, bool]], renewed_at: float) -> bytes:
    """Encode the leases of claimed tasks as a HOLD_LEASES frame.

    Each task is paired with whether it runs in a child process.
    """
    pack = LEASE_STRUCT.pack
    records = [
        pack(task.id.bytes, task.nonce, task.attempt, task.lease_s, task.timeout_s, in_child_process)
        for task, in_child_process in tasks
    ]
    return encode_frame(HOLD_LEASES_FRAME, INSTANT_STRUCT.pack(renewed_at) + b"".join(records))


def split_task_ids(body: bytes) -> list[bytes]:
    return [body[start : start + TASK_ID_BYTES] for start in range(0, len(body), TASK_ID_BYTES)]


def encode_message_numbers(numbers: Iterable[int]) -> bytes:
    return b"".join([MESSAGE_NUMBER_STRUCT.pack(number) for number in numbers])


def decode_message_numbers(body: bytes) -> list[int]:
    return [number for (number,) in MESSAGE_NUMBER_STRUCT.iter_unpack(body)]
