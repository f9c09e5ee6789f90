"""Workers killed with -9 at every stage: the work is taken over, and nothing is there twice."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from callers import bearer
from homes import KEY, House
from worker_processes import Workers

from holdfast import Client
from holdfast.settings import Secret
from holdfast.testing import Clock, eventually

STAGES = ("fetched", "rendered", "printed", "stored", "history")
LATE = timedelta(seconds=90)
VISIBLE = "select count(*) from holdfast.artifacts where status = 'visible'"
CRASHED = "select count(*) from holdfast.attempts where outcome = 'crashed'"


@pytest.fixture
async def workers(url: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Workers]:
    gates = tmp_path / "gates"
    gates.mkdir()
    monkeypatch.setenv("HOLDFAST_GATES", str(gates))
    monkeypatch.setenv("HOLDFAST_STORAGE_URL", str(tmp_path / "files"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "support"))
    made = Workers(url, gates, Path(__file__).parents[1] / "support" / "gates_app.py")
    yield made
    for process in made.started:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def killed_at(workers: Workers, *stages: str) -> None:
    """Start a worker, wait until it stands at all these places at once, and kill it."""
    for stage in stages:
        (workers.folder / f"stop {stage}").touch()
    process = await workers.start()
    await eventually(
        lambda: process.returncode is not None or all((workers.folder / stage).exists() for stage in stages),
        within=LATE,
        what=f"a worker at {stages}",
    )
    assert process.returncode is None, (workers.folder / "worker0.log").read_text()
    process.kill()
    await process.wait()
    for stage in stages:
        (workers.folder / f"stop {stage}").unlink()


@pytest.mark.timeout(300)
async def test_an_export_survives_the_death_of_its_worker_at_every_stage(
    house: House, workers: Workers, clock: Clock
) -> None:
    users = [house.user() for _ in STAGES]
    jobs = [
        await user.export(await user.document(title=f"gate:{stage}"))
        for user, stage in zip(users, STAGES, strict=True)
    ]
    await killed_at(workers, *STAGES)
    async with house.db.connection() as connection:
        assert await connection.fetchval("select count(*) from export_history") == 0
    await aftermath(house, clock)
    await workers.start()
    ended = await _ended(house, jobs)
    assert {job["tasks"][0]["attempt"] for job in ended} == {2}
    async with house.db.connection() as connection:
        rows = await connection.fetch("select id from export_history")
    assert {str(row["id"]) for row in rows} == set(jobs)
    assert await _swept(house) == len(STAGES)
    for user, job in zip(users, jobs, strict=True):
        link = await user.get(f"/api/v1/export/download/{job}")
        assert (await house.web.get(link.headers["location"])).content.startswith(b"%PDF")


async def aftermath(house: House, clock: Clock) -> None:
    """Nobody works: the leases of the dead end, and their retries come due.

    The process that renews a worker's leases may live a moment longer, and renew them once more.
    """

    async def reclaimed() -> Any:
        await clock.advance(timedelta(seconds=90))
        async with house.db.connection() as connection:
            return await connection.fetchval("select holdfast.reclaim_stale_tasks()")

    await eventually(reclaimed, within=LATE, what="the leases of the dead end")
    await clock.advance(timedelta(seconds=90))


async def _ended(house: House, jobs: list[str]) -> list[dict[str, Any]]:
    async def all_ended() -> list[dict[str, Any]] | None:
        told = [(await house.web.get(f"/api/jobs/{job}", headers=bearer(KEY))).json() for job in jobs]
        assert not [job for job in told if job["status"] in ("failed", "cancelled")], told
        return told if all(job["status"] == "succeeded" for job in told) else None

    try:
        found: list[dict[str, Any]] = await eventually(all_ended, within=LATE)
    except AssertionError as late:
        told = [(await house.web.get(f"/api/jobs/{job}", headers=bearer(KEY))).json() for job in jobs]
        open_tasks = [task for job in told for task in job["tasks"] if task["status"] != "succeeded"]
        raise AssertionError(open_tasks) from late
    return found


async def _swept(house: House) -> int:
    """After the sweep the store holds what is visible and nothing else; how many files that is."""
    async with house.db.connection() as connection:
        rows = await connection.fetch("select key from holdfast.artifacts where status = 'visible'")
    async with Client(house.db.url.reveal(), settings=house.db.settings) as client:
        await client.files.sweep()
        found = {stored.key async for page in client.files.store.list() for stored in page}
    assert found == {row["key"] for row in rows}
    return len(found)


@pytest.mark.timeout(300)
async def test_a_report_survives_the_death_of_its_workers_at_every_stage(
    bindery: House, workers: Workers, clock: Clock
) -> None:
    ann = bindery.user()
    params = {"person1": {"name": "Ana"}, "person2": {"name": "Bo"}, "systems": ["western"]}
    asked = await ann.post("/api/jobs/start", {"type": "nuclear_v2", "params": params})
    job = asked.json()["id"]
    await killed_at(workers, "text hunger", "pdf shelter", "audio speech")
    await aftermath(bindery, clock)
    await killed_at(workers, "finalizing")
    await aftermath(bindery, clock)
    await workers.start()
    await _ended(bindery, [job])
    told = (await ann.get(f"/api/jobs/{job}")).json()
    names = [file["name"] for file in told["artifacts"]]
    assert len(names) == len(set(names)) == 16 + 17 + 17
    async with bindery.db.connection() as connection:
        crashed = await connection.fetchval(
            "select count(*) from holdfast.attempts where outcome = 'crashed'"
        )
    assert crashed >= 4
    assert await _swept(bindery) == len(names)
