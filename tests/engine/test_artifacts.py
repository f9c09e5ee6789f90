"""Artifacts: visible only after their task succeeds, expiry, deletion, and access by owner."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from manual_worker import ManualWorker, build_outcome, expect_error, run_ticks, submit_graph, submit_job

from holdfast.engine import artifacts, jobs, leases, quotas
from holdfast.engine.connection import Connection, Database
from holdfast.engine.leases import LeasedTask, OutcomeKind
from holdfast.errors import GoneError, NotFoundError
from holdfast.model import Artifact
from holdfast.testing import Clock

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


async def stage_file(
    conn: Connection, task: LeasedTask, name: str = "a.txt", **file: Any
) -> artifacts.StagedArtifact:
    return await artifacts.stage_artifact(conn, task, {"name": name, **file})


async def record_upload(
    conn: Connection, staged: artifacts.StagedArtifact, task: LeasedTask | None, size: int = 10
) -> Artifact:
    return await artifacts.record_artifact_upload(
        conn, staged.id, task, size=size, sha256=EMPTY_SHA256, meta={}
    )


async def save_file(
    conn: Connection, task: LeasedTask, name: str = "a.txt", size: int = 10, **file: Any
) -> Artifact:
    return await record_upload(conn, await stage_file(conn, task, name, **file), task, size)


async def upload_file_without_task(
    conn: Connection, name: str = "a.txt", size: int = 10, **file: Any
) -> Artifact:
    return await record_upload(
        conn, await artifacts.stage_artifact_without_task(conn, {"name": name, **file}), None, size
    )


async def list_file_names(conn: Connection, **where: Any) -> list[str]:
    return [each.name for each in await artifacts.list_artifacts(conn, where)]


async def read_used_quota(conn: Connection, owner: str) -> tuple[int, int]:
    usage = await quotas.get_owner_usage(conn, owner)
    return usage["bytes"]["used"], usage["files"]["used"]


class DeletedKeysRecorder:
    """Keeps what the sweep wants deleted."""

    def __init__(self) -> None:
        self.deleted: list[str] = []

    async def __call__(self, keys: Sequence[str]) -> None:
        self.deleted += keys


async def check_quota_totals(conn: Connection) -> None:
    """What is counted for an owner is what the rows say."""
    wrong = await conn.fetch(
        "select u.owner, u.bytes, u.files from holdfast.usage u where (u.bytes, u.files) <> ("
        " select coalesce(sum(f.size), 0), count(f.id) from holdfast.artifacts f"
        " where f.owner = u.owner and f.counted_in_usage)"
    )
    assert wrong == []


@pytest.mark.parametrize("several", [False, True], ids=["single", "graph"])
async def test_files_become_visible_with_the_success(conn: Connection, several: bool) -> None:
    manual_worker = ManualWorker(conn)
    if several:
        job = (await submit_graph(conn, {"name": "x"}, {"name": "y", "after": ["x"]}, owner="ann")).id
    else:
        job = await submit_job(conn, owner="ann")
    task = await manual_worker.claim_one_task()
    saved = await save_file(conn, task, "übung.png", kind="image", content_type="image/png")
    assert saved.job_id == job
    assert saved.key.startswith(f"ann/{job}/image/")
    assert await list_file_names(conn, job=job) == []
    with pytest.raises(NotFoundError):
        await artifacts.get_artifact(conn, saved.id)
    artifact = await artifacts.find_artifact_by_name(conn, task, "übung.png")
    assert artifact is not None
    assert artifact.id == saved.id
    assert await manual_worker.finish_task(task) == "ok"
    assert await list_file_names(conn, job=job) == ["übung.png"]
    assert (await artifacts.get_artifact(conn, saved.id)).content_type == "image/png"
    assert await manual_worker.finish_task(task) == "ok"  # said again
    assert await list_file_names(conn, job=job) == ["übung.png"]


OTHERS: tuple[OutcomeKind, ...] = ("fail", "reject", "snooze", "release", "cancel", "limited")


async def test_files_of_attempts_that_did_not_succeed_are_discarded(
    conn: Connection, clock: Clock, db: Database
) -> None:
    for number, kind in enumerate(OTHERS):
        await lose_lease(conn, clock, db, kind, ManualWorker(conn, queues=[f"q{number}"]))


async def lose_lease(
    conn: Connection, clock: Clock, db: Database, kind: OutcomeKind, manual_worker: ManualWorker
) -> None:
    bucket = DeletedKeysRecorder()
    job = await submit_job(conn, owner="ann", attempts=5, queue=manual_worker.queues[0])
    task = await manual_worker.claim_one_task()
    saved = await save_file(conn, task)
    uploading = await stage_file(conn, task, "half")
    await manual_worker.finish_task(
        task, kind, {"delay_s": 0.001} if kind == "snooze" else {"type": "E", "message": "m"}
    )
    assert await list_file_names(conn, job=job) == []
    await clock.advance(timedelta(minutes=1))
    swept = await artifacts.sweep_artifacts(db, bucket)
    assert swept.lost == 2
    assert sorted(bucket.deleted) == sorted([saved.key, uploading.key])
    assert await read_used_quota(conn, "ann") == (0, 0)
    await check_quota_totals(conn)


async def test_a_stale_attempt_can_neither_stage_nor_record_nor_show(conn: Connection, clock: Clock) -> None:
    manual_worker = ManualWorker(conn)
    job = await submit_job(conn, lease_s=1)
    old = await manual_worker.claim_one_task()
    staged = await stage_file(conn, old)
    done = await save_file(conn, old, "old")
    await clock.advance(timedelta(seconds=30))
    await run_ticks(conn)
    await clock.advance(timedelta(minutes=10))
    new = await manual_worker.claim_one_task()
    assert (new.id, new.attempt) == (old.id, old.attempt + 1)
    with expect_error("HF001"):
        await stage_file(conn, old, "late")
    with expect_error("HF001"):
        await record_upload(conn, staged, old)
    fresh = await save_file(conn, new, "new")
    assert await manual_worker.finish_task(old) == "stale"
    assert await list_file_names(conn, job=job) == []
    assert await manual_worker.finish_task(new) == "ok"
    assert await list_file_names(conn, job=job) == ["new"]
    for each in (done, fresh):
        assert str(each.job_id) in each.key
    assert done.key != fresh.key
    with expect_error("HF001"):  # another attempt's file, with a good lease of one's own
        await artifacts.record_artifact_upload(conn, staged.id, new, size=1, sha256=EMPTY_SHA256, meta={})


async def test_a_file_replaces_an_earlier_file_of_the_same_name(conn: Connection, db: Database) -> None:
    manual_worker, bucket = ManualWorker(conn), DeletedKeysRecorder()
    job = await submit_job(conn, owner="ann")
    task = await manual_worker.claim_one_task()
    first = await save_file(conn, task, "a.txt", 1)
    second = await save_file(conn, task, "a.txt", 2)
    await manual_worker.finish_task(task)
    (seen,) = await artifacts.list_artifacts(conn, {"job": job})
    assert seen.id == second.id
    await jobs.retry_job(conn, job)
    again = await manual_worker.claim_one_task()
    third = await save_file(conn, again, "a.txt", 4)
    await save_file(conn, again, "b.txt", 8)
    await manual_worker.finish_task(again)
    assert [each.id for each in await artifacts.list_artifacts(conn, {"job": job, "name": "a.txt"})] == [
        third.id
    ]
    await artifacts.sweep_artifacts(db, bucket)
    assert sorted(bucket.deleted) == sorted([first.key, second.key])
    assert await read_used_quota(conn, "ann") == (12, 2)
    with pytest.raises(GoneError, match="replaced"):
        await artifacts.get_artifact(conn, second.id)


async def test_many_tasks_at_once_show_their_own_files(conn: Connection) -> None:
    manual_worker = ManualWorker(conn)
    job_ids = [await submit_job(conn, owner="ann" if n % 2 else None) for n in range(20)]
    tasks = await manual_worker.claim_tasks(20)
    for task in tasks[:10]:
        await save_file(conn, task, f"of {task.id}")
    answers = (
        await manual_worker.finish_and_claim(
            [build_outcome(task, "reject" if n == 3 else "succeed") for n, task in enumerate(tasks)]
        )
    ).answers
    assert set(answers) == {"ok"}
    seen = {job: await list_file_names(conn, job=job) for job in job_ids}
    expected = {task.id: [f"of {task.id}"] if n < 10 and n != 3 else [] for n, task in enumerate(tasks)}
    assert seen == expected


async def test_completing_in_the_callers_own_transaction_shows_them_with_its_commit(
    conn: Connection, second: Connection
) -> None:
    manual_worker = ManualWorker(conn)
    job = await submit_job(conn)
    task = await manual_worker.claim_one_task()
    await save_file(conn, task)
    async with conn.transaction():
        await leases.complete_task(conn, task, b"1")
        assert await list_file_names(conn, job=job) == ["a.txt"]
        assert await list_file_names(second, job=job) == []
    assert await list_file_names(second, job=job) == ["a.txt"]


async def test_expiry_by_the_file_the_job_type_and_the_owner(
    conn: Connection, clock: Clock, db: Database
) -> None:
    await artifacts.put_artifact_retention_rule(conn, ttl=timedelta(days=4))
    await artifacts.put_artifact_retention_rule(conn, owner="ann", ttl=timedelta(days=3))
    await artifacts.put_artifact_retention_rule(conn, job_type="t", ttl=timedelta(days=2))
    await artifacts.put_artifact_retention_rule(conn, owner="eve", job_type="t", ttl=None)
    manual_worker = ManualWorker(conn)
    for owner in ("ann", "eve"):
        await submit_job(conn, owner=owner)
        task = await manual_worker.claim_one_task()
        await save_file(conn, task, f"{owner} own", ttl_s=86400)
        await save_file(conn, task, f"{owner} type")
        await manual_worker.finish_task(task)
    await upload_file_without_task(conn, "ann file", owner="ann")
    await upload_file_without_task(conn, "any file")
    left = [{"eve type", "ann type", "ann file", "any file"}, {"eve type", "ann file", "any file"}]
    left += [{"eve type", "any file"}, {"eve type"}, {"eve type"}]
    for expected in left:
        await clock.advance(timedelta(days=1, minutes=1))
        assert set(await list_file_names(conn)) == expected
        await artifacts.sweep_artifacts(db, DeletedKeysRecorder())
        assert set(await list_file_names(conn)) == expected
    await check_quota_totals(conn)


async def test_an_expired_file_is_gone_and_can_be_regenerated(
    conn: Connection, clock: Clock, db: Database
) -> None:
    manual_worker, bucket = ManualWorker(conn), DeletedKeysRecorder()
    job = await submit_job(conn, owner="ann")
    task = await manual_worker.claim_one_task()
    saved = await save_file(conn, task, ttl_s=60)
    await manual_worker.finish_task(task)
    await clock.advance(timedelta(minutes=2))
    for sweep in (False, True):
        if sweep:
            await artifacts.sweep_artifacts(db, bucket)
        with pytest.raises(GoneError, match="expired"):
            await artifacts.get_artifact(conn, saved.id)
        with pytest.raises(GoneError):
            await artifacts.increment_artifact_downloads(conn, saved.id)
    assert bucket.deleted == [saved.key]
    assert (await artifacts.regenerate_artifact(conn, saved.id))["job_id"] == str(job)
    again = await manual_worker.claim_one_task()
    assert (await save_file(conn, again, ttl_s=60)).id != saved.id
    await manual_worker.finish_task(again)
    assert await list_file_names(conn, job=job) == ["a.txt"]
    await clock.advance(timedelta(days=40))
    await artifacts.sweep_artifacts(db, bucket)
    with pytest.raises(NotFoundError):  # nobody remembers
        await artifacts.get_artifact(conn, saved.id)


async def test_an_interrupted_sweep_is_repeated(conn: Connection, clock: Clock, db: Database) -> None:
    saved = [await upload_file_without_task(conn, f"{n}", ttl_s=60) for n in range(5)]
    await clock.advance(timedelta(minutes=2))

    async def dies(_: Sequence[str]) -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await artifacts.sweep_artifacts(db, dies)
    bucket = DeletedKeysRecorder()
    assert (await artifacts.sweep_artifacts(db, bucket)).deleted == 0  # somebody may be at it
    await clock.advance(timedelta(minutes=6))
    assert (await artifacts.sweep_artifacts(db, bucket)).deleted == 5
    assert sorted(bucket.deleted) == sorted(each.key for each in saved)
    assert (await artifacts.sweep_artifacts(db, bucket)).deleted == 0


async def test_an_upload_that_ends_after_its_sweep_is_swept_again(
    conn: Connection, clock: Clock, db: Database
) -> None:
    manual_worker, bucket = ManualWorker(conn), DeletedKeysRecorder()
    await submit_job(conn)
    task = await manual_worker.claim_one_task()
    staged = await stage_file(conn, task)
    await manual_worker.finish_task(task, "reject")
    for _ in range(4):
        await clock.advance(timedelta(hours=10))
        await artifacts.sweep_artifacts(db, bucket)
    assert bucket.deleted == [staged.key, staged.key]
    assert await conn.fetchval("select count(*) from holdfast.artifacts") == 0


async def test_files_of_living_attempts_and_uploads_are_left_alone(
    conn: Connection, clock: Clock, db: Database
) -> None:
    manual_worker, bucket = ManualWorker(conn), DeletedKeysRecorder()
    await submit_job(conn, lease_s=3600, timeout_s=36000)
    task = await manual_worker.claim_one_task()
    await save_file(conn, task)
    uploading = await artifacts.stage_artifact_without_task(conn, {"name": "slow"})
    for _ in range(4):
        await clock.advance(timedelta(minutes=10))
        await artifacts.touch_artifact_upload(conn, uploading.id)
        await artifacts.sweep_artifacts(db, bucket, limit=1)
    assert bucket.deleted == []
    await clock.advance(timedelta(minutes=16))  # nobody speaks for it any more
    await artifacts.sweep_artifacts(db, bucket)
    assert bucket.deleted == [uploading.key]
    with expect_error("HF001"):
        await record_upload(conn, uploading, None)
    assert await manual_worker.finish_task(task) == "ok"
    assert await list_file_names(conn) == ["a.txt"]


INVALID_FILE_NAMES = [
    "",
    " ",
    ".",
    "..",
    "a/b",
    "a\\b",
    "../x",
    "/etc/passwd",
    "a\nb",
    "\x7f",
    "x" * 256,
    "x" * 4000,
]


async def test_names_that_are_refused(conn: Connection) -> None:
    for name in INVALID_FILE_NAMES:
        with expect_error("HF004", "name"):
            await artifacts.stage_artifact_without_task(conn, {"name": name})


@pytest.mark.parametrize(
    "name", ["😀.png", "Übung „1“.pdf", "x" * 255, "日本語" * 80, "con", "-rf", "a b", "%2e%2e", "~"]
)
async def test_names_that_are_kept_and_never_become_a_path(conn: Connection, name: str) -> None:
    saved = await upload_file_without_task(conn, name, owner="../../etc", kind="a/../b")
    assert saved.name == name
    parts = saved.key.split("/")
    assert len(parts) == 5
    assert all(part and set(part) != {"."} and len(part) < 120 and part.isascii() for part in parts)


async def test_keys_of_different_owners_share_no_folder(conn: Connection) -> None:
    owners = ["a/b", "a_b", "a b", "A_b", "ä", "a", ".", "..", "_", "a" * 300, "a" * 301]
    folders = [(await upload_file_without_task(conn, owner=owner)).key.split("/")[0] for owner in owners]
    assert len(set(folders)) == len(owners)


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"content_type": "text"}, "type"),
    ({"content_type": "text/html\r\nX: y"}, "type"),
    ({"kind": ""}, "kind"),
    ({"kind": "a\nb"}, "kind"),
    ({"ttl_s": -1}, "ttl_s"),
    ({"size": -1}, "size"),
)


async def test_files_that_are_refused(conn: Connection) -> None:
    for file, field in WRONG:
        with expect_error("HF004", field):
            await artifacts.stage_artifact_without_task(conn, {"name": "a", **file})


async def test_meta_is_checked(conn: Connection) -> None:
    staged = await artifacts.stage_artifact_without_task(conn, {"name": "a"})
    for meta in ({"pages": -1}, {"duration": "long"}, {"x": "y" * 9000}):
        with expect_error("HF004"):
            await artifacts.record_artifact_upload(
                conn, staged.id, None, size=1, sha256=EMPTY_SHA256, meta=meta
            )
    good: dict[str, Any] = {"pages": 3, "duration": 1.5, "width": 10, "height": 20, "title": "x"}
    assert (
        await artifacts.record_artifact_upload(conn, staged.id, None, size=1, sha256=EMPTY_SHA256, meta=good)
    ).meta == good


async def test_each_owner_sees_and_deletes_their_own(conn: Connection) -> None:
    mine = await upload_file_without_task(conn, "mine", owner="ann")
    theirs = await upload_file_without_task(conn, "theirs", owner="bob")
    await upload_file_without_task(conn, "nobody's")
    manual_worker = ManualWorker(conn)
    await submit_job(conn, owner="ann")
    task = await manual_worker.claim_one_task()
    staged = await save_file(conn, task, "not yet")
    async with conn.transaction():
        claims = msgspec.json.encode({"sub": "ann"}).decode()
        await conn.execute("select set_config('request.jwt.claims', $1, true)", claims)
        await conn.execute("set local role authenticated")
        assert await list_file_names(conn) == ["mine"]
        assert await list_file_names(conn, owner="bob") == ["mine"]
        assert [row["name"] for row in await conn.fetch("select name from holdfast.artifacts")] == ["mine"]
        assert (await artifacts.get_artifact(conn, mine.id)).key == ""  # of the object store; for services
        for each in (theirs, staged):
            with pytest.raises(NotFoundError):
                await artifacts.get_artifact(conn, each.id)
            assert not await artifacts.delete_artifact(conn, each.id)
        assert await artifacts.delete_artifact(conn, mine.id)
        assert await list_file_names(conn) == []
        assert await conn.fetch("select name from holdfast.artifacts") == []
    assert await list_file_names(conn, owner="bob") == ["theirs"]
    assert (await artifacts.get_artifact(conn, theirs.id)).downloads == 0


async def test_pages_and_batches(conn: Connection) -> None:
    batch = await jobs.open_batch(conn, "b", owner="ann")
    manual_worker = ManualWorker(conn)
    for n in range(3):
        await submit_job(conn, owner="ann", batch=str(batch))
        task = await manual_worker.claim_one_task()
        await save_file(conn, task, f"{n}.txt")
        await manual_worker.finish_task(task)
    await upload_file_without_task(conn, "other", owner="ann")
    assert await list_file_names(conn, batch=batch) == ["0.txt", "1.txt", "2.txt"]
    file_names: list[str] = []
    after: UUID | None = None
    while page := await artifacts.list_artifacts(conn, {"owner": "ann"}, after=after, limit=1):
        file_names, after = [*file_names, page[0].name], page[0].id
    assert file_names == ["0.txt", "1.txt", "2.txt", "other"]


COUNT_ARTIFACT_SCANS = """
    select coalesce(seq_scan, 0) + coalesce(idx_scan, 0)
    from pg_stat_xact_all_tables where relid = 'holdfast.artifacts'::regclass"""


async def test_finishing_tasks_without_files_does_not_read_the_table_of_files(conn: Connection) -> None:
    """Finishing does not even look at the table of files."""
    manual_worker = ManualWorker(conn)
    for _ in range(20):
        await submit_job(conn, owner="ann")
    tasks = await manual_worker.claim_tasks(20)
    for saving in (False, True):
        if saving:
            await save_file(conn, tasks[19])
        async with conn.transaction():
            await manual_worker.finish_and_claim(
                [build_outcome(task) for task in (tasks[10:] if saving else tasks[:10])]
            )
            assert (await conn.fetchval(COUNT_ARTIFACT_SCANS) > 0) == saving
