"""What workers report about themselves, and their commands."""

from __future__ import annotations

from uuid import UUID

import pytest

from holdfast.engine import explain, jobs, leases, workers
from holdfast.engine.connection import Connection, Database
from holdfast.errors import InvalidError, NotFoundError


async def read_command(conn: Connection, worker: str) -> str | None:
    answer = await leases.finish_and_claim(conn, worker=worker, slots=1, queues=["q"])
    return answer.command


async def list_worker_states(conn: Connection) -> dict[str, str]:
    return {each["name"]: each["state"] for each in await workers.list_workers(conn)}


async def list_wait_reasons(conn: Connection, task: UUID) -> list[str]:
    return [each["reason"] for each in (await explain.explain_task(conn, task))["reasons"]]


async def test_a_command_reaches_one_worker_by_claim_and_heartbeat(db: Database) -> None:
    async with db.connection() as conn:
        assert await read_command(conn, "a") is None
        assert await read_command(conn, "b") is None
        assert await leases.set_worker_command(conn, "a", "drain")
        assert await read_command(conn, "a") == "drain"
        assert await leases.heartbeat_worker(conn, "a", {"pid": 7}) == "drain"
        assert await read_command(conn, "b") is None
        await leases.set_worker_command(conn, "a", None)
        assert await read_command(conn, "a") is None


async def test_a_stopped_worker_receives_no_command(db: Database, conn: Connection) -> None:
    async with db.connection() as own:
        await read_command(own, "a")
        await leases.heartbeat_worker(own, "a", {"pid": 7, "running": 3})
        assert (
            await conn.fetchval("select report ->> 'running' from holdfast.workers where name = 'a'") == "3"
        )
        await leases.mark_worker_stopped(own, "a")
        assert not await leases.set_worker_command(own, "a", "stop")
        assert not await conn.fetchval("select sleeping from holdfast.workers where name = 'a'")


async def test_a_worker_that_died_is_lost_and_one_that_left_is_not(db: Database) -> None:
    async with db.connection() as conn:
        for name in ("died", "left"):
            await read_command(conn, name)
        await leases.mark_worker_lost(conn, "died")
        await leases.mark_worker_stopped(conn, "left")
        await leases.mark_worker_lost(conn, "left")
        assert await list_worker_states(conn) == {"died": "lost", "left": "stopped"}
        await conn.execute("select holdfast.pause_queue('q')")  # nothing is claimed here
        job = await jobs.submit(conn, {"type": "t", "queue": "q"})
        assert "no_worker" in await list_wait_reasons(conn, job.id)
        await read_command(conn, "died")  # an outside worker may come back under its name
        assert await list_worker_states(conn) == {"died": "live", "left": "stopped"}
        assert "no_worker" not in await list_wait_reasons(conn, job.id)


async def test_invalid_commands_and_reports_are_refused(db: Database) -> None:
    with pytest.raises(NotFoundError):
        async with db.connection() as conn:
            await leases.set_worker_command(conn, "nobody", "stop")
    with pytest.raises(InvalidError):
        async with db.connection() as conn:
            await leases.set_worker_command(conn, "nobody", "dance")  # type: ignore[arg-type]
    with pytest.raises(InvalidError):
        async with db.connection() as conn:
            await leases.heartbeat_worker(conn, "a", {"x": "x" * 20_000})
    with pytest.raises(InvalidError, match="must be a JSON object"):
        async with db.connection() as conn:
            await conn.fetchval("select holdfast.heartbeat_worker('a', '[1]')")
