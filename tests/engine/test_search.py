"""Search: every matching job is returned exactly once, from every table, and only to its owner."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from manual_worker import ManualWorker, run_ticks, submit_graph, submit_job

from holdfast.engine import error_groups, jobs, search
from holdfast.engine.connection import Connection
from holdfast.testing import Clock


async def find_matches(conn: Connection, text: str, **options: Any) -> list[UUID]:
    page = await search.search_jobs(conn, text, **options)
    return [UUID(row["id"]) for row in page.rows]


async def submit_failed_jobs(
    conn: Connection, count: int = 1, *, error: str = "TimeoutError", **job: Any
) -> list[UUID]:
    ids = [await submit_job(conn, **{"attempts": 1, **job}) for _ in range(count)]
    manual_worker = ManualWorker(conn)
    for task in await manual_worker.claim_tasks(count):
        body = {"type": error, "message": f"{error} at 12", "fingerprint": f"{error} a.py:f"}
        await manual_worker.finish_task(task, "fail", body)
    return ids


async def test_each_field_finds_its_job_in_every_place(conn: Connection, clock: Clock) -> None:
    manual_worker = ManualWorker(conn)
    done = await submit_job(
        conn,
        type="shot",
        owner="acme",
        labels={"team": "media", "n": 7},
        args={"url": {"host": "e"}, "w": 8},
        key="k1",
    )
    await manual_worker.finish_task(await manual_worker.claim_one_task(), "succeed", {"key": "made"})
    (broken,) = await submit_failed_jobs(conn, type="caption", owner="zeta")
    waiting = await submit_job(conn, type="shot", queue="other", owner="acme", args={"w": 9})
    both = await submit_graph(
        conn,
        {"name": "a", "type": "fetch", "args": {"deep": 1}},
        {"name": "b", "after": ["a"]},
        type="pipeline",
        owner="acme",
    )
    later = await submit_job(conn, type="late", delay_s=600)
    batch = await jobs.open_batch(conn)
    member = await submit_job(conn, type="member", batch=str(batch), queue="third")
    every = [member, later, both.id, waiting, broken, done]
    for text, expected in {
        "": every,
        "state:succeeded": [done],
        "state:failed": [broken],
        "state:ended": [broken, done],
        "state:queued": [member, later, both.id, waiting],
        "state:ready": [member, both.id, waiting],
        "state:scheduled": [later],
        "state:waiting": [both.id],
        "-state:queued": [broken, done],
        "queue:other": [waiting],
        "queue:other,third": [member, waiting],
        "-queue:q": [member, waiting],
        "task:shot": [waiting, done],
        "task:fetch": [both.id],
        "task:pipeline": [both.id],
        "-task:shot,late": [member, both.id, broken],
        "owner:acme": [both.id, waiting, done],
        "tenant:acme -task:pipeline": [waiting, done],
        "-owner:acme": [member, later, broken],
        "tag:team=media": [done],
        "tag:n=7": [done],
        "tag:n": [done],
        "tag:n=8": [],
        "-tag:team": [member, later, both.id, waiting, broken],
        "args.w:8": [done],
        "args.w:8,9": [waiting, done],
        "args.w:8 args.url.host:e,x": [done],
        "args.w:8 args.w:8,9": [done],
        "args.w:8 args.w:9": [],
        "args.deep:1 args.deep:1,2": [both.id],
        "-args.deep:1 queue:q": [later, broken, done],
        "tag:team=media,team=other": [done],
        "tag:team=media tag:n": [done],
        "tag:team=media tag:n=8": [],
        "tag:team,nosuch": [done],
        "attempt:0 task:shot": [waiting],
        "attempt:<1 queue:other": [waiting],
        "x.y|(z": [],
        "SHOT": [waiting, done],
        "shot,pipe": [both.id, waiting, done],
        "shot acme": [waiting, done],
        "args.url.host:e args.w:8": [done],
        "args.url.host:e args.w:9": [],
        "args.deep:1": [both.id],
        "-args.w:9 task:shot": [done],
        "result.key:made": [done],
        "error:TimeoutError": [broken],
        'error:"at 12"': [broken],
        "-error:TimeoutError state:ended": [done],
        'cause:"TimeoutError a.py:f"': [broken],
        "key:k1": [done],
        f"batch:{batch}": [member],
        f"job:{done},{broken}": [broken, done],
        f"-job:{done} state:ended": [broken],
        "worker:hand": [broken, done],
        "attempt:>=1": [broken, done],
        "attempt:>1": [],
        "run:<1h": [broken, done],
        "wait:>1h": [],
        "caption": [broken],
        "pipe": [both.id],
        "zeta": [broken],
        "timeouterror": [broken],
        str(done)[:20]: None,
        "-shot -late": [member, both.id, broken],
        "since:1h": every,
        "until:1h": [],
        "since:2999-01-01": [],
    }.items():
        ids = await find_matches(conn, text)
        if expected is None:
            assert done in ids
        else:
            assert ids == expected, text
            count = await search.count_jobs(conn, text)
            assert (count.count, count.exact) == (len(expected), True), text
    await clock.advance(timedelta(hours=2))
    assert await find_matches(conn, "since:1h") == []
    assert len(await find_matches(conn, "until:1h")) == 6
    assert await find_matches(conn, "wait:>1h state:ready") == [member, both.id, waiting]


async def test_jobs_of_many_tasks_stay_found_when_they_are_archived(conn: Connection, clock: Clock) -> None:
    submitted = await submit_graph(
        conn, {"name": "a", "type": "fetch", "args": {"n": "x"}, "attempts": 1}, type="pipeline"
    )
    manual_worker = ManualWorker(conn)
    await manual_worker.finish_task(
        await manual_worker.claim_one_task(), "fail", {"type": "Broken", "message": "m"}
    )
    await clock.advance(timedelta(minutes=5))
    await run_ticks(conn)
    for text in ("state:failed", "task:fetch", "queue:q", "args.n:x", "error:Broken", "worker:hand"):
        assert await find_matches(conn, text) == [submitted.id], text


async def test_a_retry_differs_from_a_delayed_task(conn: Connection) -> None:
    again = await submit_job(conn)
    manual_worker = ManualWorker(conn)
    await manual_worker.finish_task(
        await manual_worker.claim_one_task(), "fail", {"type": "E", "message": "m"}
    )
    later = await submit_job(conn, delay_s=100)
    assert await find_matches(conn, "state:retrying") == [again]
    assert await find_matches(conn, "state:scheduled") == [later, again]
    (row,) = (await search.search_jobs(conn, "state:retrying")).rows
    assert (row["state"], row["status"], row["failures"], row["error"]["type"]) == (
        "retrying",
        "queued",
        1,
        "E",
    )


async def test_pages_show_each_job_once_even_from_one_transaction(conn: Connection) -> None:
    submitted = await jobs.submit_many(
        conn, [{"type": "t", "queue": "q", "args": {"n": n}} for n in range(40)]
    )
    manual_worker = ManualWorker(conn)
    for task in await manual_worker.claim_tasks(13):
        await manual_worker.finish_task(task)
    for _ in range(5):
        await submit_graph(conn, {"name": "a"}, {"name": "b"})
    seen: list[UUID] = []
    page = await search.search_jobs(conn, "", limit=7)
    while True:
        seen += [UUID(row["id"]) for row in page.rows]
        if page.next is None:
            break
        page = await search.search_jobs(conn, "", limit=7, before=page.next)
    assert len(seen) == len(set(seen)) == 45
    assert seen == sorted(seen, reverse=True)
    assert {job.id for job in submitted} <= set(seen)


async def test_a_truncated_search_continues_where_it_stopped(conn: Connection) -> None:
    """Rare jobs in all three places, with a walk of a hundred rows: each is found exactly once."""
    rare: set[UUID] = set()
    manual_worker = ManualWorker(conn)
    for n in range(450):
        special = n % 45 == 0
        job = await submit_job(conn, type="rare" if special else "usual", queue="q" if n % 3 else "stays")
        if special:
            rare.add(job)
    for task in await manual_worker.claim_tasks(400):
        await manual_worker.finish_task(task)
    for n in range(30):
        submitted = await submit_graph(
            conn, {"name": "a"}, type="rare" if n % 10 == 0 else "pair", queue="stays"
        )
        if n % 10 == 0:
            rare.add(submitted.id)
    where = msgspec.json.encode({"task": {"in": ["rare"]}}).decode()
    seen: list[UUID] = []
    before, truncated = None, 0
    for _ in range(50):
        call = "select holdfast.search_jobs($1, $2, 5, 100)"
        page = msgspec.json.decode(await conn.fetchval(call, where, before), type=search.JobSearchPage)
        seen += [UUID(row["id"]) for row in page.rows]
        truncated += page.truncated
        before = page.next
        if before is None:
            break
    assert before is None
    assert truncated
    assert seen == sorted(rare, reverse=True)
    count = msgspec.json.decode(await conn.fetchval("select holdfast.count_jobs($1, 1000, 100)", where))
    assert count["exact"] is False


async def test_an_owner_limits_the_search_to_their_jobs(conn: Connection) -> None:
    """Users may not search: words of errors and arguments would be an oracle for what is hidden from them."""
    mine = await submit_job(conn, owner="ann", args={"x": 1})
    await submit_job(conn, owner="bob", args={"x": 1})
    for function in ("search_jobs", "count_jobs"):
        assert not await conn.fetchval(
            "select bool_or(has_function_privilege('authenticated', oid, 'execute')) from pg_proc"
            " where proname = $1",
            function,
        )
    assert await find_matches(conn, "", owner="ann") == [mine]
    assert await find_matches(conn, "owner:bob", owner="ann") == [mine]


async def test_a_search_goes_on_when_the_newest_rows_do_not_fill_its_page(conn: Connection) -> None:
    """It scans twenty rows for each row of the page first: the matches are below these, in two tables."""
    first = await submit_job(conn, type="rare")
    graph = (await submit_graph(conn, {"name": "a"}, type="rare", queue="stays")).id
    await jobs.submit_many(conn, [{"type": "t", "queue": "q"} for _ in range(100)])
    page = await search.search_jobs(conn, "task:rare", limit=2)
    assert [UUID(row["id"]) for row in page.rows] == [graph, first]
    assert (page.next, page.truncated) == (None, False)
    assert (await search.count_jobs(conn, "task:rare", max_rows=3)).exact


async def test_bounded_counts_are_estimates_of_the_right_size(conn: Connection) -> None:
    await jobs.submit_many(conn, [{"type": "t", "queue": "q"} for _ in range(30)])
    count = await search.count_jobs(conn, "state:ready", max_rows=10)
    assert (count.count, count.exact, count.at_least, str(count)) == (30, False, False, "about 30")
    await jobs.submit_many(conn, [{"type": "u", "queue": "q", "owner": "ann"} for _ in range(9000)])
    await jobs.submit_many(conn, [{"type": "u", "queue": "q", "owner": "bob"} for _ in range(3000)])
    for text, expected in (("", 12_030), ("task:u", 12_000), ("owner:ann", 9000), ("task:u owner:bob", 3000)):
        count = await search.count_jobs(conn, text, max_rows=1000)
        assert count.exact is False
        assert count.count == pytest.approx(expected, rel=0.2), text
    # A rare match far down: the search stops before it, and the sample does not have it.
    where = search.build_search_filter("task:t", None)
    rare = msgspec.json.decode(await conn.fetchval("select holdfast.count_jobs($1, 1000, 100)", where))
    assert rare["exact"] is False
    assert rare["count"] <= 500


async def test_causes_with_many_attempts_are_estimated(conn: Connection) -> None:
    await submit_failed_jobs(conn, 200, error="ManyError")
    since = await conn.fetchval("select holdfast.now() - interval '1 hour'")
    rows = await conn.fetch("select holdfast.list_error_groups($1, null, false, 10, 50)", since)
    [group] = [msgspec.json.decode(row[0]) for row in rows]
    assert (group["attempts"], group["exact"], sum(group["trend"])) == (200, False, 200)
    assert (group["jobs"], group["jobs_exact"]) == (200, False)


async def test_causes(conn: Connection, clock: Clock) -> None:
    await submit_failed_jobs(conn, 3, error="OldError")
    await clock.advance(timedelta(hours=30))
    slow = await submit_failed_jobs(conn, 5, error="TimeoutError", owner="acme")
    await submit_failed_jobs(conn, 2, error="KeyError", type="other")
    groups = {g["type"]: g for g in await error_groups.list_error_groups(conn)}
    assert set(groups) == {"TimeoutError", "KeyError"}
    slow_group = groups["TimeoutError"]
    assert (slow_group["attempts"], slow_group["jobs"], slow_group["exact"], slow_group["tasks"]) == (
        5,
        5,
        True,
        ["t"],
    )
    assert slow_group["workers"] == ["hand"]
    assert sum(slow_group["trend"]) == 5
    assert [g["type"] for g in await error_groups.list_error_groups(conn, owner="acme")] == ["TimeoutError"]
    cause = slow_group["cause"]
    one = await error_groups.get_error_group(conn, cause)
    assert one is not None
    assert len(one["samples"]) == 5
    assert {s["job"] for s in one["samples"]} == {str(i) for i in slow}
    assert await error_groups.get_error_group(conn, "nothing") is None
    assert await find_matches(conn, f'cause:"{cause}"') == slow[::-1]
    until = await conn.fetchval("select holdfast.now() + interval '1 hour'")
    await error_groups.ignore_error_group(
        conn, cause, until=until, by="ann", reason="known", link="https://e.example/1"
    )
    assert [g["type"] for g in await error_groups.list_error_groups(conn)] == ["KeyError"]
    assert len(await error_groups.list_error_groups(conn, ignored=True)) == 2
    await clock.advance(timedelta(hours=2))
    assert len(await error_groups.list_error_groups(conn)) == 2


async def test_a_word_is_looked_for_in_fewer_rows_and_the_page_says_in_how_many(conn: Connection) -> None:
    await submit_job(conn)
    words = {"nowhere": 25_000, "state:failed": 100_000, "args.a:b": 100_000}
    for text, max_rows in words.items():
        assert (await search.search_jobs(conn, text)).scan == max_rows
    ask = "select holdfast.compute_search_row_limit('{\"text\": {}}', $1)"
    # Whoever acts on all that fit counts as many as will be acted on.
    assert [await conn.fetchval(ask, max_scanned) for max_scanned in (None, 10, 1_000_000)] == [
        25_000,
        100,
        1_000_000,
    ]
