"""What a worker and its heartbeat process say to each other over their socket.

A frame is one letter, the length of the rest, and the rest. Leases travel as fixed records because every
task passes here; everything else is rare and is msgpack.

To the heartbeat: S how to begin, H leases to hold (after the instant since when), D leases to drop (16 bytes
of id each), B the task that blocks the loop (its id, or nothing), A what the worker says about itself, N
renew all now, E we end in good order; M messages to keep invisible, L messages to let go (8 bytes of number
each). Back: R a round of renewals, V the same for messages, W words about trouble, C a command, O ready to
hold leases.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Literal

import msgspec

from holdfast.engine.leases import Claimed

HEAD = struct.Struct("<cI")
LEASE = struct.Struct("<16sqiffB")  # id, nonce, attempt, lease_s, timeout_s, isolated
INSTANT = struct.Struct("<d")  # an instant by the clock both processes share
NUMBER = struct.Struct("<q")
ID_BYTES = 16

Kind = Literal[
    b"S", b"H", b"D", b"B", b"A", b"N", b"E", b"M", b"L", b"R", b"V", b"W", b"C", b"O"
]  # fmt: skip


class Start(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    worker: str
    pid: int
    connect_timeout_s: float
    call_timeout_s: float
    log_format: str
    loop_patience_s: float


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """Renewals that were sent at `sent_at` by the clock both processes share. Ids are 16 bytes each."""

    sent_at: float
    kept: bytes = b""
    lost: bytes = b""
    cancelled: bytes = b""


class HeldMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message that a function works on. The number is the worker's own; `read_at` by the shared clock."""

    number: int
    queue: str
    receipt: str
    vt_s: float
    read_at: float

    @property
    def id(self) -> int:
        return int(self.receipt.partition(".")[0])


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """Messages by number: still ours, read by somebody else, and let go with no renewal on its way."""

    sent_at: float
    kept: list[int] = []
    lost: list[int] = []
    let_go: list[int] = []


def frame(kind: Kind, body: bytes = b"") -> bytes:
    return HEAD.pack(kind, len(body)) + body


def holding(claimed: Iterable[tuple[Claimed, bool]], renewed_at: float) -> bytes:
    pack = LEASE.pack
    return frame(
        b"H",
        INSTANT.pack(renewed_at)
        + b"".join(
            [
                pack(c.id.bytes, c.nonce, c.attempt, c.lease_s, c.timeout_s, isolated)
                for c, isolated in claimed
            ]
        ),
    )


def ids_in(body: bytes) -> list[bytes]:
    return [body[at : at + ID_BYTES] for at in range(0, len(body), ID_BYTES)]


def numbers(of: Iterable[int]) -> bytes:
    return b"".join([NUMBER.pack(each) for each in of])


def numbers_in(body: bytes) -> list[int]:
    return [each for (each,) in NUMBER.iter_unpack(body)]


class Frames:
    """Bytes in, whole frames out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, received: bytes) -> list[tuple[bytes, bytes]]:
        self._buffer += received
        found: list[tuple[bytes, bytes]] = []
        at = 0
        while len(self._buffer) - at >= HEAD.size:
            kind, length = HEAD.unpack_from(self._buffer, at)
            end = at + HEAD.size + length
            if len(self._buffer) < end:
                break
            found.append((kind, bytes(self._buffer[at + HEAD.size : end])))
            at = end
        del self._buffer[:at]
        return found
