"""Adapter for pgmq: SQL of the package `pgmq` and a minimal loop that reads 100 messages and deletes them."""

from __future__ import annotations

import asyncio
import json

import asyncpg
import pgmq
from protocol import HOLD_JOBS, MAX_JOBS_AT_ONCE, PEER_DSN, PeerAdapter, main, stats, wait_forever


def _read_pgmq_sql() -> str:
    from importlib.resources import files  # noqa: PLC0415

    for path in files(pgmq).rglob("*.sql"):  # type: ignore[attr-defined]
        return str(path.read_text(encoding="utf-8"))
    raise FileNotFoundError("the package pgmq contains no SQL file")


class PgmqAdapter(PeerAdapter):
    async def install_schema(self) -> None:
        connection = await asyncpg.connect(PEER_DSN)
        await connection.execute("create schema if not exists pgmq")
        await connection.execute(_read_pgmq_sql())
        await connection.execute("select pgmq.create('bench')")
        await connection.close()

    async def connect(self) -> None:
        self.connection = await asyncpg.connect(PEER_DSN)

    async def disconnect(self) -> None:
        await self.connection.close()

    async def enqueue_one(self, sent: float) -> None:
        await self.connection.execute("select pgmq.send('bench', $1::jsonb)", json.dumps({"sent": sent}))

    async def enqueue_many(self, count: int) -> None:
        await self.connection.execute("select pgmq.send_batch('bench', $1::jsonb[])", ['{"sent": 0}'] * count)

    async def run_worker(self, stop: asyncio.Event) -> None:
        connection = await asyncpg.connect(PEER_DSN)
        while not stop.is_set():
            rows = await connection.fetch(
                "select msg_id, message from pgmq.read('bench', $1, $2)",
                600 if HOLD_JOBS else 30,
                MAX_JOBS_AT_ONCE or 100,
            )
            for row in rows:
                stats.record_job(json.loads(row["message"])["sent"])
            if HOLD_JOBS:
                await wait_forever()
            if rows:
                await connection.execute(
                    "select pgmq.delete('bench', $1::bigint[])", [r["msg_id"] for r in rows]
                )
            else:
                await asyncio.sleep(0.005)


if __name__ == "__main__":
    main(PgmqAdapter())
