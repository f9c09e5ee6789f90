"""What every adapter speaks. It runs in the peer's own environment, so it needs nothing but Python.

adapter install            make the schema
adapter one N | bulk N     enqueue N no-op jobs one by one, or in thousands; prints {"seconds": s}
adapter paced N            enqueue N jobs, one each 25 ms, each carrying the time it was sent
adapter work               run a worker until SIGTERM; prints {"handled": n, "waits_ms": [...]}

A worker says {"reached": n, "at": time} with its first job. With PEER_AT_ONCE=n it takes as many at once
as it can, up to n, and says so when it has begun them; with PEER_HOLD=1 its handlers never return.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from abc import ABC, abstractmethod

DSN = os.environ.get("PEER_DSN", "")
AT_ONCE = int(os.environ.get("PEER_AT_ONCE", "0"))
HOLD = "PEER_HOLD" in os.environ
THOUSAND = 1000
PACE = 0.025
TOLD = {1, AT_ONCE}


class Handled:
    """Counts what the handler did; jobs that carry a time tell how long they waited."""

    def __init__(self) -> None:
        self.count = 0
        self.waits_ms: list[float] = []

    def note(self, sent: float | None) -> None:
        self.count += 1
        if self.count in TOLD:
            print(json.dumps({"reached": self.count, "at": time.time()}), flush=True)
        if sent:
            self.waits_ms.append((time.time() - sent) * 1000)


handled = Handled()


async def hold() -> None:
    """A job that is running for as long as its worker lives."""
    await asyncio.Event().wait()


class Peer(ABC):
    async def open(self) -> None:  # noqa: B027  (most need nothing)
        """Before enqueueing."""

    async def close(self) -> None:  # noqa: B027
        """After it."""

    @abstractmethod
    async def install(self) -> None: ...

    @abstractmethod
    async def one(self, sent: float) -> None:
        """Enqueue one job; `sent` is 0 or the time."""

    @abstractmethod
    async def many(self, count: int) -> None: ...

    @abstractmethod
    async def work(self, stop: asyncio.Event) -> None:
        """Run a worker until `stop` is set."""


async def _enqueue(peer: Peer, what: str, count: int) -> None:
    await peer.open()
    started_at = time.perf_counter()
    if what == "bulk":
        for start in range(0, count, THOUSAND):
            await peer.many(min(THOUSAND, count - start))
    else:
        for _ in range(count):
            await peer.one(time.time() if what == "paced" else 0)
            if what == "paced":
                await asyncio.sleep(PACE)
    print(json.dumps({"seconds": time.perf_counter() - started_at}), flush=True)
    await peer.close()


async def _work(peer: Peer) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    working = asyncio.create_task(peer.work(stop))
    waiting = asyncio.create_task(stop.wait())
    await asyncio.wait([working, waiting], return_when=asyncio.FIRST_COMPLETED)
    if working.done():
        working.result()
    print(json.dumps({"handled": handled.count, "waits_ms": handled.waits_ms}), flush=True)
    os._exit(0)  # how long others take to leave is not what is measured


def main(peer: Peer) -> None:
    try:
        import uvloop  # noqa: PLC0415

        uvloop.install()
    except ImportError:
        pass
    what = sys.argv[1]
    if what == "install":
        asyncio.run(peer.install())
    elif what == "work":
        asyncio.run(_work(peer))
    else:
        asyncio.run(_enqueue(peer, what, int(sys.argv[2])))
