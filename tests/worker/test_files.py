"""`ctx.save` and `ctx.open` in tasks that really run."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from object_store_servers import find_free_port, format_s3_url

from holdfast import Artifact, Client, Ctx, Graph, RetryPolicy, task
from holdfast.client import open_client_database
from holdfast.engine import quotas
from holdfast.engine.connection import Connection, Database
from holdfast.errors import NotFoundError, Reject, TaskFailedError
from holdfast.settings import Secret, Settings
from holdfast.storage import obstore_backend
from holdfast.testing import Clock
from holdfast.worker.runtime import WorkerRuntime

ROOT = Path(__file__).resolve().parents[2]
ONCE = RetryPolicy(retries=0)
TWICE = RetryPolicy(retries=1, base=timedelta(0), cap=timedelta(0))


@pytest.fixture
async def file_client(url: Secret, settings: Settings, tmp_path: Path) -> AsyncGenerator[Client]:
    settings = replace(settings, storage_url=Secret(str(tmp_path / "store")))
    async with Client(url.reveal(), settings=settings) as client:
        yield client


async def run(client: Client, work: Any, *tasks: Any, **options: Any) -> Any:
    """Submit, let a worker drain the queue, and answer with the job's handle."""
    job = await client.submit(work, **options)
    async with Database((await open_client_database(client)).url, client.settings) as database:
        worker = WorkerRuntime(database, {each.name: each for each in tasks}, until="drained")
        await asyncio.wait_for(worker.run(asyncio.Event()), 60)
    return job


@task(retry=ONCE)
async def saves_everything(ctx: Ctx, folder: str) -> list[Artifact]:
    async def stream_chunks() -> AsyncIterator[bytes]:
        yield b"strea"
        yield b"med"

    path = Path(folder) / "on disk.csv"
    path.write_bytes(b"a,b\n1,2\n")
    return [
        await ctx.save("bytes.txt", b"bytes", meta={"pages": 2}),
        await ctx.save(path.name, path, kind="table"),
        await ctx.save("stream", stream_chunks(), "application/x-stream"),
        await ctx.save("file 😀.bin", io.BytesIO(b"0" * 10), ttl=timedelta(hours=1)),
    ]


@task(retry=ONCE)
async def reads(ctx: Ctx, files: list[Artifact]) -> list[str]:
    rows = []
    for file in files:
        async with ctx.open(file) as content:
            rows.append((await content.read()).decode())
    async with ctx.open("on disk.csv") as content:
        rows.append("".join([piece.decode() async for piece in content]))
    return rows


async def test_files_are_passed_between_tasks_of_a_graph(file_client: Client, tmp_path: Path) -> None:
    graph = Graph("g")
    saved = graph.add(saves_everything(str(tmp_path)))
    graph.add(reads(saved.result))
    job = await run(file_client, graph, saves_everything, reads, owner="ann")
    done = await file_client.get(job.id)
    outputs = {each.name: each.output for each in done.tasks}
    assert outputs["reads"] == ["bytes", "a,b\n1,2\n", "streamed", "0" * 10, "a,b\n1,2\n"]
    rows = {each.name: each for each in await file_client.files.list(job=job.id)}
    assert set(rows) == {"bytes.txt", "on disk.csv", "stream", "file 😀.bin"}
    assert rows["bytes.txt"].meta == {"pages": 2}
    assert (rows["on disk.csv"].kind, rows["on disk.csv"].content_type) == ("table", "text/csv")
    assert rows["stream"].content_type == "application/x-stream"
    assert rows["file 😀.bin"].expires_at is not None
    assert [file["expires_at"] is None for file in outputs["saves_everything"]] == [True, True, True, False]
    assert all(each.key.startswith(f"ann/{job.id}/") for each in rows.values())


@task(retry=ONCE)
def saves_in_a_thread(ctx: Ctx) -> str:
    saved = ctx.blocking.save("a.txt", b"from a thread")
    with ctx.blocking.open("a.txt") as content:  # one's own, before anybody else sees it
        return content.read().decode() + " " + saved.name


async def test_plain_function_saves_a_file(file_client: Client) -> None:
    job = await run(file_client, saves_in_a_thread(), saves_in_a_thread)
    assert await job.result() == "from a thread a.txt"


@task(retry=TWICE)
async def fails_first(ctx: Ctx) -> int:
    await ctx.save("a.txt", f"attempt {ctx.attempt}".encode())
    await ctx.save(f"only {ctx.attempt}", b"x")
    if ctx.attempt == 1:
        raise OSError("the first time")
    return ctx.attempt


async def test_only_files_of_the_successful_attempt_are_visible(
    file_client: Client, conn: Connection, clock: Clock, tmp_path: Path
) -> None:
    job = await run(file_client, fails_first(), fails_first, owner="ann")
    assert await job.result() == 2
    assert [each.name for each in await file_client.files.list(job=job.id)] == ["a.txt", "only 2"]
    (seen,) = await file_client.files.list(job=job.id, name="a.txt")
    async with file_client.files.open(seen) as content:
        assert await content.read() == b"attempt 2"
    await clock.advance(timedelta(minutes=2))
    await file_client.files.sweep()
    assert len([path for path in (tmp_path / "store").rglob("*") if path.is_file()]) == 2
    assert (await quotas.get_owner_usage(conn, "ann"))["files"]["used"] == 2


CALLED: list[int] = []


@task(retry=TWICE)
async def saves_in_a_step(ctx: Ctx, fails: int) -> tuple[Artifact, int]:
    async def draw() -> Artifact:
        CALLED.append(ctx.attempt)
        return await ctx.save("drawing", f"by {ctx.attempt}".encode())

    drawing = await ctx.step("draw", draw)
    async with ctx.open(drawing) as content, ctx.open("drawing") as same:
        assert await content.read() == await same.read()
    await ctx.save(f"note {ctx.attempt}", b"x")
    if ctx.attempt <= fails:
        raise OSError("the first times")
    return drawing, ctx.attempt


@task(retry=TWICE)
def saves_in_a_step_of_a_thread(ctx: Ctx) -> int:
    def draw() -> str:
        return ctx.blocking.save("drawing", f"by {ctx.attempt}".encode()).name

    ctx.blocking.step("draw", draw)
    ctx.blocking.report(50, phase="drawn")
    if ctx.attempt == 1:
        raise OSError("the first time")
    return ctx.attempt


@task(retry=TWICE, process=True)
async def saves_in_a_step_of_a_child(ctx: Ctx) -> int:
    async def draw() -> str:
        return (await ctx.save("drawing", f"by {ctx.attempt}".encode())).name

    await ctx.step("draw", draw)
    await ctx.report(50, phase="drawn")
    if ctx.attempt == 1:
        raise OSError("the first time")
    return ctx.attempt


async def test_file_of_a_step_is_visible_after_a_later_attempt_succeeds(
    file_client: Client, conn: Connection, clock: Clock, tmp_path: Path
) -> None:
    CALLED.clear()
    job = await run(file_client, saves_in_a_step(1), saves_in_a_step, owner="ann")
    drawing, attempt = await job.result()
    assert (attempt, CALLED) == (2, [1])
    seen = {each.name: each for each in await file_client.files.list(job=job.id)}
    assert set(seen) == {"drawing", "note 2"}
    assert seen["drawing"].id == drawing.id
    async with file_client.files.open(seen["drawing"]) as content:
        assert await content.read() == b"by 1"
    await clock.advance(timedelta(minutes=2))
    await file_client.files.sweep()
    assert len([path for path in (tmp_path / "store").rglob("*") if path.is_file()]) == 2
    assert (await quotas.get_owner_usage(conn, "ann"))["files"]["used"] == 2


@pytest.mark.parametrize("work", [saves_in_a_step_of_a_thread, saves_in_a_step_of_a_child])
async def test_steps_in_threads_and_child_processes_keep_their_files(file_client: Client, work: Any) -> None:
    job = await run(file_client, work(), work, owner="ann")
    assert await job.result() == 2
    assert (await file_client.get(job.id)).progress.phase == "drawn"
    (seen,) = await file_client.files.list(job=job.id)
    async with file_client.files.open(seen) as content:
        assert await content.read() == b"by 1"


async def test_step_result_and_its_files_are_stored_together(
    file_client: Client, conn: Connection, clock: Clock, tmp_path: Path
) -> None:
    CALLED.clear()
    job = await run(file_client, saves_in_a_step(3), saves_in_a_step, owner="ann")
    with pytest.raises(TaskFailedError):
        await job.result()
    assert CALLED == [1]
    assert await file_client.files.list(job=job.id) == []
    # Run again at once, the step is skipped and its file is still there; it fails once more.
    await conn.execute("select holdfast.retry_job($1)", job.id)
    await run(file_client, fails_first(), saves_in_a_step, fails_first)
    assert CALLED == [1]
    assert [each.name for each in await file_client.files.list(job=job.id)] == ["drawing", "note 4"]
    # Once they are gone, the step is done again.
    for file in await file_client.files.list(job=job.id):
        await file_client.files.delete(file.id)
    await conn.execute("select holdfast.retry_job($1)", job.id)
    await run(file_client, fails_first(), saves_in_a_step, fails_first)
    assert CALLED == [1, 5]
    assert [each.name for each in await file_client.files.list(job=job.id)] == ["drawing", "note 5"]


async def test_files_of_steps_are_deleted_when_the_task_fails(
    file_client: Client, conn: Connection, clock: Clock, tmp_path: Path
) -> None:
    await run(file_client, saves_in_a_step(9), saves_in_a_step, owner="ann")
    await clock.advance(timedelta(minutes=2))
    await file_client.files.sweep()
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []
    assert (await quotas.get_owner_usage(conn, "ann"))["files"]["used"] == 0


@task(retry=ONCE)
async def bad(ctx: Ctx, what: str) -> None:
    names = {"nul": "a\0b", "long": "x" * 4000, "up": "..", "slash": "a/b", "half": "\ud83d"}
    if what == "changes":
        path = Path(os.environ["CHANGING"])

        async def changing() -> AsyncIterator[bytes]:
            yield b"x"
            raise Reject("the source gave up")

        path.write_bytes(b"x")
        await ctx.save("a", changing())
    elif what == "missing":
        async with ctx.open("nobody saved this"):
            pass
    elif what == "quota":
        await ctx.save("a", bytes(200))
    elif what == "text":
        await ctx.save("a", "text")  # type: ignore[arg-type]
    else:
        await ctx.save(names[what], b"x")


async def test_invalid_save_arguments_fail_the_task_and_store_no_file(
    file_client: Client, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHANGING", str(tmp_path / "changing"))
    await quotas.put_quota(conn, "ann", size=100)
    expected = {
        "nul": "file name", "long": "file name", "up": "file name", "slash": "file name", "half": "file name",
        "changes": "gave up", "missing": "no file 'nobody", "quota": "0 of 100 used", "text": "Cannot save",
    }  # fmt: skip
    handles = await file_client.submit_many([bad(what) for what in expected], owner="ann")
    await run(file_client, bad("up"), bad, owner="ann")
    for (what, response), handle in zip(expected.items(), handles, strict=True):
        with pytest.raises(TaskFailedError, match=response):
            await handle.result()
        assert await file_client.files.list(job=handle.id) == [], what
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


async def test_unavailable_store_fails_the_attempt_which_is_retried(
    url: Secret, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(obstore_backend.OBSTORE_RETRY_OPTIONS, "max_retries", 0)
    down = replace(settings, storage_url=Secret(format_s3_url(find_free_port())))
    async with Client(url.reveal(), settings=down) as client:
        job = await run(client, fails_first(), fails_first)
        with pytest.raises(TaskFailedError, match="cannot be reached"):
            await job.result()
        assert await client.files.list() == []


async def test_changed_content_in_the_store_is_detected(file_client: Client, tmp_path: Path) -> None:
    saved = await file_client.files.put("a", b"right")
    place = tmp_path / "store" / saved.key
    for wrong in (b"wrong", b"righ", b"right!"):
        place.write_bytes(wrong)
        with pytest.raises(Exception, match="differs from what was saved"):
            async with file_client.files.open(saved) as content:
                await content.read()
    place.unlink()
    with pytest.raises(NotFoundError):
        async with file_client.files.open(saved):
            pass


async def test_blocking_client_reads_files(file_client: Client) -> None:
    def plain() -> bytes:
        files = file_client.blocking.files
        saved = files.put("a.txt", b"plain", owner="ann")
        assert [each.id for each in files.list(owner="ann")] == [saved.id]
        assert files.get(saved.id).name == "a.txt"
        assert files.create_download_link(saved).startswith("/files/")
        content = files.read(saved)
        files.delete(saved.id)
        file_client.blocking.close()
        return content

    assert await asyncio.to_thread(plain) == b"plain"


async def test_file_example_of_the_guide(url: Secret, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "HOLDFAST_DATABASE_URL": url.reveal(),
        "HOLDFAST_HOME": str(tmp_path),
    }
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "holdfast", "worker", "examples/files.py", env=environment, cwd=ROOT
    )
    try:
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "examples/files.py"], env=environment, cwd=ROOT,
            capture_output=True, text=True, check=True, timeout=90,
        )  # fmt: skip
    finally:
        worker.terminate()
        await worker.wait()
    assert "Übersicht.png image/png" in done.stdout
    assert "{'width': 640, 'height': 320}" in done.stdout
    assert "Übersicht.png.gz application/gzip" in done.stdout
    assert done.stdout.count("verified with their hash") == 2
    assert "'bytes': {'used': " in done.stdout
