"""The order of downloads, limits, SQL rows and monitoring: what `start_share_downloads` decides."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from api_clients import bearer_headers
from media_harness import MediaHarness, MediaSite, media_url
from system_harness import SERVICE_KEY
from web_servers import WebServer

from holdfast.systems import media
from holdfast.testing import wait_until

INSERT = "insert into shares (user_id, url, premium, download_status) values ($1, $2, $3, $4) returning id"


async def pretend_worker(system: MediaHarness, slots: int) -> None:
    """Register a worker with this many slots that never claims anything."""
    await system.fetch("delete from holdfast.workers")
    await system.fetch(
        "insert into holdfast.workers (name, queues, report, started_at, seen_at) values"
        " ('w', array['media'], jsonb_build_object('slots', $1::int), now(), now())",
        slots,
    )


async def add_row(
    system: MediaHarness, *, premium: bool = False, status: str = "pending", host: str | None = None
) -> UUID:
    url = f"http://{host or f'h{uuid4().hex[:8]}.example'}/v.mp4"
    share_id: UUID = await system.fetchval(INSERT, uuid4(), url, premium, status)
    return share_id


async def start_one(system: MediaHarness) -> UUID | None:
    """Make room for one more download, and return the share that was started."""
    before = {
        row["id"] for row in await system.fetch("select id from shares where slot_taken_at is not null")
    }
    await pretend_worker(system, len(before) + 1)
    await system.fetchval("select start_share_downloads()")
    after = {row["id"] for row in await system.fetch("select id from shares where slot_taken_at is not null")}
    return next(iter(after - before), None)


async def test_premium_retries_come_first_and_every_fifth_start_is_free(media_system: MediaHarness) -> None:
    free = [await add_row(media_system) for _ in range(3)]
    free_retry = await add_row(media_system, status="retry")
    premium = [await add_row(media_system, premium=True) for _ in range(6)]
    premium_retry = await add_row(media_system, premium=True, status="retry")
    started = [await start_one(media_system) for _ in range(11)]
    assert started == [
        *(premium_retry, premium[0], premium[1], premium[2], free_retry),
        *(premium[3], premium[4], premium[5], free[0], free[1]),
        free[2],
    ]
    assert await start_one(media_system) is None


async def test_a_plan_of_the_token_makes_a_share_premium(
    media_system: MediaHarness, website: WebServer
) -> None:
    for plan, expected in ((None, False), ("free", False), ("Premium", True)):
        share = await media_system.create_user(plan).share(media_url(website))
        assert (
            await media_system.fetchval("select premium from shares where id = $1", share["id"]) is expected
        )


async def test_a_host_at_its_limit_is_passed_over(media_system: MediaHarness) -> None:
    await media_system.fetch("update holdfast.limit_rules set max_running = 2 where name like '%host'")
    first = [await add_row(media_system, host="slow.example") for _ in range(4)]
    other = await add_row(media_system, host="other.example")
    assert [await start_one(media_system) for _ in range(3)] == [first[0], first[1], other]
    assert await start_one(media_system) is None


async def test_the_total_limit_holds(media_system: MediaHarness) -> None:
    await media_system.fetch("update holdfast.limit_rules set max_running = 3 where name = 'media downloads'")
    for _ in range(5):
        await add_row(media_system)
    await pretend_worker(media_system, 50)
    assert await media_system.fetchval("select start_share_downloads()") == 3
    assert await media_system.fetchval("select start_share_downloads()") == 0


async def test_few_downloads_with_ytdlp_run_at_once_over_all_workers(media_system: MediaHarness) -> None:
    await media_system.fetch("update holdfast.limit_rules set max_running = 2 where name like '%yt-dlp'")
    pages = [await add_row(media_system) for _ in range(4)]
    assert [await start_one(media_system) for _ in range(4)] == pages
    await media_system.fetch("update shares set download_status = 'processing'")  # as their tasks do
    take = "select take_ytdlp_slot(id, job_id) from shares where id = $1"
    assert [await media_system.fetchval(take, page) for page in pages] == [True, True, False, False]
    assert await media_system.fetchval(take, pages[0]) is True, "a task that starts again keeps its place"
    rows = await media_system.fetch(
        "select download_status, download_attempts, slot_taken_at from shares where id = any ($1)", pages[2:]
    )
    assert [tuple(row.values()) for row in rows] == [("retry", 0, None)] * 2
    # Other downloads go on. The pages that wait are started when others have ended: see test_whole_job.py.
    direct = await add_row(media_system)
    assert [await start_one(media_system) for _ in range(2)] == [direct, None]


async def test_nothing_starts_without_a_worker(media_system: MediaHarness) -> None:
    await add_row(media_system)
    assert await media_system.fetchval("select start_share_downloads()") == 0


async def test_rows_written_by_sql_are_picked_up(
    media_system: MediaHarness, website: WebServer, site: MediaSite
) -> None:
    user = media_system.create_user()
    share_id = str(
        await media_system.fetchval(
            "insert into shares (user_id, url) values ($1, $2) returning id", user.id, media_url(website)
        )
    )
    async with media_system.run_worker():
        first = await user.wait_until_finished(share_id)
        assert first["download_status"] == "completed"
        await media_system.fetch("update shares set download_status = 'pending' where id = $1", share_id)

        async def is_downloaded_again() -> bool:
            share = await user.get_share(share_id)
            return bool(share["finished"] and share["files"][0]["id"] != first["files"][0]["id"])

        await wait_until(is_downloaded_again, what="the share is downloaded again")
    assert (await user.download(share_id)).content == site.content
    assert await media_system.count_stored_objects() == 1
    assert len(website.requests) == 2


async def test_install_keeps_the_rows_of_an_existing_table(media_system: MediaHarness) -> None:
    users = [uuid4(), uuid4(), uuid4()]
    async with media_system.db.connection() as connection:
        await connection.execute(
            "create schema old; create table old.shares (id uuid primary key default gen_random_uuid(),"
            " user_id uuid not null, url text not null, media_url text, media_type varchar(20),"
            " platform_data jsonb, title text, created_at timestamp default now())"
        )
        for number, stored in enumerate(("https://cdn.example/1.mp4", None, None)):
            await connection.execute(
                "insert into old.shares (user_id, url, media_url, title) values ($1, $2, $3, 'kept')",
                users[number],
                f"https://example.com/{number}",
                stored,
            )
        await media.install(connection, "old")
        rows = await connection.fetch("select * from old.shares order by url")
        await media.install(connection, "old")
        again = await connection.fetch("select * from old.shares order by url")
    assert [row["download_status"] for row in rows] == ["completed", "pending", "pending"]
    assert [row["processing_status"] for row in rows] == ["skipped", "waiting", "waiting"]
    assert {row["title"] for row in rows} == {"kept"}
    assert [dict(row) for row in rows] == [dict(row) for row in again]


async def test_a_cancelled_job_shows_on_the_share(media_system: MediaHarness) -> None:
    share_id = await add_row(media_system)
    assert await start_one(media_system) == share_id
    await media_system.fetch("select holdfast.cancel_job(job_id) from shares where id = $1", share_id)
    await media_system.fetch(
        "update shares set slot_taken_at = now() - interval '1 minute' where id = $1", share_id
    )
    await media_system.fetchval("select start_share_downloads()")
    [row] = await media_system.fetch("select * from shares where id = $1", share_id)
    assert (row["download_status"], row["slot_taken_at"]) == ("failed", None)
    assert row["download_error"] == "The download stopped unexpectedly. Try again."


async def test_the_monitoring_views_answer_the_three_questions(media_system: MediaHarness) -> None:
    for status in ("pending", "retry", "failed", "completed"):
        await add_row(media_system, status=status)
    await media_system.fetch(
        "update shares set download_completed_at = now(), download_started_at = now() - interval '20 s'"
        " where download_status = 'completed'"
    )
    depth: dict[str, Any] = {
        row["download_status"]: row["count"]
        for row in await media_system.fetch("select * from download_queue_depth")
    }
    assert depth == {"pending": 1, "retry": 1, "failed": 1}
    assert round(await media_system.fetchval("select avg_seconds from download_average_time")) == 20
    assert await media_system.fetchval("select failure_rate from download_failure_rate") == pytest.approx(25)
    response = await media_system.http.get("/metrics", headers=bearer_headers(SERVICE_KEY))
    assert response.status_code == 200, response.text
    lines = [line for line in response.text.splitlines() if line.startswith("holdfast_media_")]
    values = {name: round(float(value), 1) for name, value in (line.rsplit(" ", 1) for line in lines)}
    assert values == {
        'holdfast_media_shares{status="pending"}': 1,
        'holdfast_media_shares{status="processing"}': 0,
        'holdfast_media_shares{status="retry"}': 1,
        'holdfast_media_shares{status="failed"}': 1,
        "holdfast_media_completed_last_hour": 1,
        "holdfast_media_download_seconds": 20,
        "holdfast_media_failure_ratio": 0.2,  # a quarter, rounded
    }
    await media_system.fetch("drop view download_failure_rate")  # the metrics of the engine are still served
    response = await media_system.http.get("/metrics", headers=bearer_headers(SERVICE_KEY))
    assert "holdfast_workers" in response.text
    assert "holdfast_media_" not in response.text
