"""Workers killed with SIGKILL at every stage: other workers take over, and no result exists twice."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from api_clients import bearer_headers
from system_harness import SERVICE_KEY, SystemHarness
from worker_processes import WorkerProcesses

from holdfast import Client
from holdfast.settings import Secret
from holdfast.testing import wait_until

EXPORT_STAGES = ("fetched", "rendered", "printed", "stored", "history")
WAIT_TIMEOUT = timedelta(seconds=90)
COUNT_VISIBLE_FILES_QUERY = "select count(*) from holdfast.artifacts where status = 'visible'"
COUNT_RUNNING_TASKS_QUERY = "select count(*) from holdfast.tasks where status = 'running'"
COUNT_LOST_ATTEMPTS_QUERY = "select count(*) from holdfast.attempts where outcome = 'lost'"


@pytest.fixture
async def workers(
    url: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[WorkerProcesses]:
    gates = tmp_path / "gates"
    gates.mkdir()
    monkeypatch.setenv("HOLDFAST_GATES", str(gates))
    monkeypatch.setenv("HOLDFAST_STORAGE_URL", str(tmp_path / "files"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "support"))
    workers = WorkerProcesses(url, gates, Path(__file__).parents[1] / "support" / "gated_systems_app.py")
    yield workers
    for process in workers.started:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def kill_worker_at(workers: WorkerProcesses, *stages: str) -> None:
    """Start a worker, wait until its tasks are blocked at all these stages, and kill it."""
    for stage in stages:
        (workers.folder / f"stop {stage}").touch()
    process = await workers.start()
    await wait_until(
        lambda: process.returncode is not None or all((workers.folder / stage).exists() for stage in stages),
        within=WAIT_TIMEOUT,
        what=f"a worker at {stages}",
    )
    assert process.returncode is None, (workers.folder / "worker0.log").read_text()
    process.kill()
    await process.wait()
    for stage in stages:
        (workers.folder / f"stop {stage}").unlink()


@pytest.mark.timeout(300)
async def test_exports_survive_a_killed_worker_at_every_stage(
    exports_system: SystemHarness, workers: WorkerProcesses
) -> None:
    users = [exports_system.create_user() for _ in EXPORT_STAGES]
    jobs = [
        await user.start_export(await user.add_document(title=f"gate:{stage}"))
        for user, stage in zip(users, EXPORT_STAGES, strict=True)
    ]
    await kill_worker_at(workers, *EXPORT_STAGES)
    async with exports_system.db.connection() as connection:
        assert await connection.fetchval("select count(*) from export_history") == 0
    await wait_until_returned(exports_system)
    await workers.start()
    ended = await _wait_for_jobs(exports_system, jobs)
    assert {job["tasks"][0]["attempt"] for job in ended} == {2}
    async with exports_system.db.connection() as connection:
        rows = await connection.fetch("select id from export_history")
    assert {str(row["id"]) for row in rows} == set(jobs)
    assert await _sweep_and_count_files(exports_system) == len(EXPORT_STAGES)
    for user, job in zip(users, jobs, strict=True):
        link = await user.get(f"/api/v1/export/download/{job}")
        assert (await exports_system.http.get(link.headers["location"])).content.startswith(b"%PDF")


async def wait_until_returned(system: SystemHarness) -> None:
    """Wait until the heartbeat process of the killed worker has returned its tasks."""

    async def has_no_running_task() -> bool:
        async with system.db.connection() as connection:
            return bool(await connection.fetchval(COUNT_RUNNING_TASKS_QUERY) == 0)

    await wait_until(has_no_running_task, within=WAIT_TIMEOUT, what="the tasks are returned")


async def _wait_for_jobs(exports_system: SystemHarness, jobs: list[str]) -> list[dict[str, Any]]:
    async def find_succeeded_jobs() -> list[dict[str, Any]] | None:
        jobs_now = [
            (await exports_system.http.get(f"/api/jobs/{job}", headers=bearer_headers(SERVICE_KEY))).json()
            for job in jobs
        ]
        assert not [job for job in jobs_now if job["status"] in ("failed", "cancelled")], jobs_now
        return jobs_now if all(job["status"] == "succeeded" for job in jobs_now) else None

    try:
        ended: list[dict[str, Any]] = await wait_until(find_succeeded_jobs, within=WAIT_TIMEOUT)
    except AssertionError as error:
        jobs_now = [
            (await exports_system.http.get(f"/api/jobs/{job}", headers=bearer_headers(SERVICE_KEY))).json()
            for job in jobs
        ]
        open_tasks = [task for job in jobs_now for task in job["tasks"] if task["status"] != "succeeded"]
        raise AssertionError(open_tasks) from error
    return ended


async def _sweep_and_count_files(exports_system: SystemHarness) -> int:
    """Sweep, check that the store has exactly the visible files, and return their number."""
    async with exports_system.db.connection() as connection:
        rows = await connection.fetch("select key from holdfast.artifacts where status = 'visible'")
    async with Client(exports_system.db.url.reveal(), settings=exports_system.db.settings) as client:
        await client.files.sweep()
        keys = {stored.key async for page in client.files.store.list() for stored in page}
    assert keys == {row["key"] for row in rows}
    return len(keys)


@pytest.mark.timeout(300)
async def test_a_report_survives_killed_workers_at_every_stage(
    reports_system: SystemHarness, workers: WorkerProcesses
) -> None:
    ann = reports_system.create_user()
    params = {"person1": {"name": "Ana"}, "person2": {"name": "Bo"}, "systems": ["western"]}
    response = await ann.post("/api/jobs/start", {"type": "nuclear_v2", "params": params})
    job = response.json()["id"]
    await kill_worker_at(workers, "text hunger", "pdf shelter", "audio speech")
    await wait_until_returned(reports_system)
    await kill_worker_at(workers, "finalizing")
    await wait_until_returned(reports_system)
    await workers.start()
    await _wait_for_jobs(reports_system, [job])
    report = (await ann.get(f"/api/jobs/{job}")).json()
    names = [file["name"] for file in report["artifacts"]]
    assert len(names) == len(set(names)) == 16 + 17 + 17
    async with reports_system.db.connection() as connection:
        assert await connection.fetchval(COUNT_LOST_ATTEMPTS_QUERY) >= 4
    assert await _sweep_and_count_files(reports_system) == len(names)
