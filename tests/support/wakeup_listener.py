"""Listen to the notifications that workers get."""

from __future__ import annotations

from holdfast.engine.connection import Connection
from holdfast.testing import wait_until
from holdfast.worker.wakeups import parse_wakeup


class WakeupListener:
    """Records the notifications to workers, in order, by the first queue that they name."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._all: list[str] = []

    async def listen(self) -> None:
        await self._conn.add_listener("holdfast", lambda *response: self._all.append(str(response[-1])))

    async def received(self) -> list[str]:
        await self._conn.execute("select pg_notify('holdfast', 'that is all')")
        await wait_until(lambda: "that is all" in self._all, what="a word of its own")
        received, self._all = self._all[: self._all.index("that is all")], []
        wakeups = [parse_wakeup(payload) for payload in received]
        return [
            text if each is None else each.queues[0] for text, each in zip(received, wakeups, strict=True)
        ]


def _name_first_queue(payload: str) -> str:
    wakeup = parse_wakeup(payload)
    return payload if wakeup is None else wakeup.queues[0]


async def set_wakeup_interval(conn: Connection, interval: str) -> None:
    """Change for how long workers are not notified again, so that no test depends on its speed."""
    await conn.execute(
        "create or replace function holdfast.get_wakeup_interval() returns interval"
        f" language sql immutable set search_path = '' as $$ select interval '{interval}' $$"
    )


async def forget_wakeups(conn: Connection) -> None:
    """Let the interval pass in which workers are not notified again."""
    await conn.execute("update holdfast.workers set woken_at = woken_at - interval '1 day'")
