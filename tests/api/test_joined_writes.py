"""The head and the body of a response are one write, in the right order and without holding large bodies."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from holdfast.server.joined_writes import MAX_HELD_BYTES, JoinedWrites


class RecordingTransport:
    """A transport that records what is called."""

    def __init__(self) -> None:
        self.calls: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        self.calls.append(data)

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")

    def is_closing(self) -> bool:
        return "close" in self.calls or "abort" in self.calls

    def get_extra_info(self, name: str) -> str:
        return f"the {name}"


def create_writes() -> tuple[RecordingTransport, JoinedWrites]:
    transport = RecordingTransport()
    return transport, JoinedWrites(cast("Any", transport), asyncio.get_running_loop())


async def test_writes_of_one_turn_are_sent_together() -> None:
    transport, writes = create_writes()
    for data in (b"head", b"body", b""):
        writes.write(data)
    assert transport.calls == []
    await asyncio.sleep(0)
    assert transport.calls == [b"headbody"]
    writes.write(b"next")
    await asyncio.sleep(0)
    assert transport.calls == [b"headbody", b"next"]


async def test_large_writes_are_sent_at_once_and_in_order() -> None:
    transport, writes = create_writes()
    large = b"x" * MAX_HELD_BYTES
    writes.write(b"head")
    writes.write(large)
    assert transport.calls == [b"head" + large]
    writes.write(b"rest")
    await asyncio.sleep(0)
    assert transport.calls == [b"head" + large, b"rest"]


async def test_close_sends_what_is_held_and_abort_does_not() -> None:
    transport, writes = create_writes()
    writes.write(b"last words")
    writes.close()
    await asyncio.sleep(0)
    assert transport.calls == [b"last words", "close"]
    transport, writes = create_writes()
    writes.write(b"unsent")
    writes.abort()
    await asyncio.sleep(0)
    assert transport.calls == ["abort"]


async def test_everything_else_is_asked_of_the_transport() -> None:
    _, writes = create_writes()
    assert writes.get_extra_info("peername") == "the peername"
