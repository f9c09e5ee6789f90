"""pgmq's own SQL, from the package `pgmq`, with the barest loop: read 100, call, delete."""

from __future__ import annotations

import asyncio
import json

import asyncpg
import pgmq
from protocol import AT_ONCE, DSN, HOLD, Peer, handled, hold, main


def _sql() -> str:
    from importlib.resources import files  # noqa: PLC0415

    for path in files(pgmq).rglob("*.sql"):  # type: ignore[attr-defined]
        return str(path.read_text(encoding="utf-8"))
    raise FileNotFoundError("the package pgmq carries no SQL")


class Pgmq(Peer):
    async def install(self) -> None:
        connection = await asyncpg.connect(DSN)
        await connection.execute("create schema if not exists pgmq")
        await connection.execute(_sql())
        await connection.execute("select pgmq.create('bench')")
        await connection.close()

    async def open(self) -> None:
        self.connection = await asyncpg.connect(DSN)

    async def close(self) -> None:
        await self.connection.close()

    async def one(self, sent: float) -> None:
        await self.connection.execute("select pgmq.send('bench', $1::jsonb)", json.dumps({"sent": sent}))

    async def many(self, count: int) -> None:
        await self.connection.execute("select pgmq.send_batch('bench', $1::jsonb[])", ['{"sent": 0}'] * count)

    async def work(self, stop: asyncio.Event) -> None:
        connection = await asyncpg.connect(DSN)
        while not stop.is_set():
            rows = await connection.fetch(
                "select msg_id, message from pgmq.read('bench', $1, $2)", 600 if HOLD else 30, AT_ONCE or 100
            )
            for row in rows:
                handled.note(json.loads(row["message"])["sent"])
            if HOLD:
                await hold()
            if rows:
                await connection.execute(
                    "select pgmq.delete('bench', $1::bigint[])", [r["msg_id"] for r in rows]
                )
            else:
                await asyncio.sleep(0.005)


if __name__ == "__main__":
    main(Pgmq())
