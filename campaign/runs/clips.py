"""Kill workers of the clip system at every boundary of its two stages.

Every clip is scraped, summarised and embedded through providers on loopback that count their calls. The
workers kill themselves exactly at a boundary (campaign/clips_app.py). No clip is hit more than twice, because
the third kill fails it on purpose. The promises: nearly every clip is done, no message is lost or left, and
no clip goes through a stage twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

from campaign.clips_boundaries import BOUNDARIES
from campaign.environment import FaultEnvironment
from campaign.runs import FaultDose, FaultRun
from holdfast.systems import clips

OWNERS = [UUID(int=number) for number in range(1, 9)]
WORKERS = 2
MAX_KILLS_PER_CLIP = 2
VICTIM_TIMEOUT_S = 40.0
MIN_END_TIMEOUT_S = 300.0
MIN_BACKLOG = 6
MIN_DONE_SHARE = 0.99
SENTENCES = ("A dull knife is dangerous because it slips.", "Soak the stone in water for ten minutes.")
EMBEDDING_DIMENSION = 64


def answer_provider(target: str, body: bytes, calls: Counter[str]) -> dict[str, Any]:
    """Answer as a scraping API, a language model or an embeddings server, and count the call."""
    if "embeddings" in target:
        texts = json.loads(body)["input"]
        calls["embeddings"] += 1
        vectors = [[float(len(text) % 7 + 1)] * EMBEDDING_DIMENSION for text in texts]
        rows = [{"index": number, "embedding": vector} for number, vector in enumerate(vectors)]
        return {"model": "campaign", "data": rows, "usage": {"prompt_tokens": 1}}
    if "chat" in target:
        calls["text"] += 1
        text = json.dumps({"title": "Knives", "summary": SENTENCES[0], "tags": ["knife"]})
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        return {"model": "campaign", "choices": [choice], "usage": {"prompt_tokens": 1}}
    calls["scraping"] += 1
    [url] = parse_qs(urlsplit(target).query)["url"]
    parts = [
        {"text": text, "startMs": str(5000 * number), "endMs": str(5000 * number + 4000)}
        for number, text in enumerate(SENTENCES)
    ]
    return {"success": True, "title": f"Video {url}", "durationSeconds": 10, "transcript": parts}


@asynccontextmanager
async def serve_providers(calls: Counter[str]) -> AsyncGenerator[str]:
    """Serve all providers on loopback. Yield the address."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = head.partition("content-length: ")[2].partition("\r\n")[0]
            body = await reader.readexactly(int(length or 0))
            content = json.dumps(answer_provider(head.split(" ")[1], body, calls)).encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                + f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode()
                + content
            )
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def kill_clip_workers(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    """Insert clips, kill workers at every boundary, and check what is left."""
    calls: Counter[str] = Counter()
    async with serve_providers(calls) as address:
        orders = env.folder / "clip-kills"
        orders.mkdir()
        env.real_workers, env.worker_app = True, "campaign.clips_app"
        env.worker_variables = {
            "CLIP_KILLS": str(orders),
            "HOLDFAST_HOME": str(env.folder / "home"),
            "HOLDFAST_EGRESS_ALLOW": address,
            "HOLDFAST_SCRAPING_URL": f"http://{address}",
            "HOLDFAST_TEXT_URL": f"http://{address}/v1",
            "HOLDFAST_EMBEDDINGS_URL": f"http://{address}/v1",
            "HOLDFAST_CLIPS_SOURCES": "scraping",
        }
        async with env.open_connection() as connection:
            await clips.install(connection)
        await _add_clips(env, dose.tasks)
        killed, hits = await _inject_faults(env, dose.faults, orders)
        await _wait_until_finished(env, MIN_END_TIMEOUT_S)
        return {"killed": dict(killed), **await _check_remains(env, calls, hits)}


async def _add_clips(env: FaultEnvironment, count: int) -> None:
    async with env.open_connection() as connection:
        first = await connection.fetchval("select count(*) from clipnest_videos")
        await connection.executemany(
            "insert into clipnest_videos (user_id, video_url) values ($1, $2)",
            [(OWNERS[n % len(OWNERS)], f"https://youtu.be/{n}") for n in range(first, first + count)],
        )


async def _keep_backlog(env: FaultEnvironment, worn: list[str]) -> None:
    """Add clips if the workers, which go on while one of them starts again, have nearly run out of them."""
    async with env.open_connection() as connection:
        waiting = await connection.fetchval(
            "select count(*) from clipnest_videos where processing_status not in ('done', 'failed')"
            " and id::text <> all ($1::text[])",
            worn,
        )
    if waiting < MIN_BACKLOG:
        await _add_clips(env, MIN_BACKLOG)


async def _inject_faults(
    env: FaultEnvironment, count: int, orders: Path
) -> tuple[Counter[str], Counter[str]]:
    """Kill workers at the boundaries in turns. Return the kills by boundary, and the hits by clip."""
    killed: Counter[str] = Counter()
    hits: Counter[str] = Counter()
    for number in env.iterate_faults(count):
        boundary = BOUNDARIES[number % len(BOUNDARIES)]
        worn = [clip for clip, times in hits.items() if times >= MAX_KILLS_PER_CLIP]
        (orders / "worn").write_text(json.dumps(worn), encoding="utf-8")
        (orders / "new").write_text(boundary, encoding="utf-8")
        (orders / "new").rename(orders / "kill")
        await env.keep_workers_running(WORKERS)
        hit = await _wait_for_death(env, orders, worn)
        if hit is None:
            continue
        killed[boundary] += 1
        hits.update(hit)
        await _end_leases(env, hit)
    return killed, hits


async def _wait_for_death(env: FaultEnvironment, orders: Path, worn: list[str]) -> list[str] | None:
    """Return the clips of the worker that has killed itself, or None if none came to the boundary."""
    deadline = time.monotonic() + VICTIM_TIMEOUT_S
    while time.monotonic() < deadline:
        for note in orders.glob("killed-*"):
            pid = int(note.name.partition("-")[2])
            if pid in env.live_workers:
                env.kill_worker(pid, with_children=True)  # it is dead; its helpers and its place go too
            hit: list[str] = json.loads(note.read_text(encoding="utf-8"))
            note.unlink()
            return hit
        await env.keep_workers_running(WORKERS)
        await _keep_backlog(env, worn)
        await asyncio.sleep(0.1)
    (orders / "kill").unlink(missing_ok=True)
    return None


async def _end_leases(env: FaultEnvironment, clip_ids: list[str]) -> None:
    """Let the leases of a dead worker end at once, instead of after two to five minutes."""
    async with env.open_connection() as connection:
        for queue in (clips.SCRAPE_QUEUE, clips.ENRICH_QUEUE):
            await connection.execute(
                f"update pgmq.q_{queue} set vt = clock_timestamp()"
                " where message ->> 'video_id' = any($1::text[]) and read_ct > 0",
                clip_ids,
            )


async def _wait_until_finished(env: FaultEnvironment, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        async with env.open_connection() as connection:
            count = await connection.fetchval(
                "select count(*) from clipnest_videos where processing_status not in ('done', 'failed')"
            )
        if not count:
            return
        assert time.monotonic() < deadline, f"{count} clips did not end in {timeout_s:.0f} s"
        await env.keep_workers_running(WORKERS)
        await asyncio.sleep(0.2)


async def _check_remains(env: FaultEnvironment, calls: Counter[str], hits: Counter[str]) -> dict[str, object]:
    async with env.open_connection() as connection:
        rows = await connection.fetch(
            "select c.id::text as id, processing_status as status, processing_error as error,"
            " (select count(*) from pgmq.a_scrape_jobs a"
            " where a.message ->> 'video_id' = c.id::text) as scraped,"
            " (select count(*) from pgmq.a_enrich_jobs a"
            " where a.message ->> 'video_id' = c.id::text) as enriched,"
            " (select count(*) from clip_passages p where p.clip_id = c.id) as passages"
            " from clipnest_videos c"
        )
        left = await connection.fetchval(
            "select (select count(*) from pgmq.q_scrape_jobs) + (select count(*) from pgmq.q_enrich_jobs)"
        )
        steps = await connection.fetchval("select count(*) from clip_steps")
    done = [row for row in rows if row["status"] == "done"]
    failed = [f"{row['id']} ({hits[row['id']]} kills): {row['error']}" for row in rows if row not in done]
    assert len(failed) <= (1 - MIN_DONE_SHARE) * len(rows), f"clips failed: {failed}"
    assert left == 0, f"{left} messages are left in the queues"
    wrong = [dict(row) for row in done if (row["scraped"], row["enriched"], row["passages"]) != (1, 1, 1)]
    assert not wrong, f"clips without exactly one message of each stage and one passage: {wrong}"
    assert steps == 0, f"{steps} answers of providers are kept for clips that are done"
    # A worker works on two clips. An answer that is on its way when the worker dies is paid for again.
    paid_again = {kind: calls[kind] - len(rows) for kind in ("scraping", "text")}
    assert all(0 <= extra <= sum(hits.values()) for extra in paid_again.values()), paid_again
    return {
        "clips done": f"{len(done)} of {len(rows)}",
        "clips hit": len(hits),
        "most kills of a clip": max(hits.values(), default=0),
        "calls repeated": paid_again,
    }


FAULT_RUNS = (
    FaultRun(
        "clips-kills",
        "kill workers at every boundary of scraping and enriching a clip",
        kill_clip_workers,
        short=FaultDose(tasks=12, faults=11),  # each boundary once
        full=FaultDose(tasks=24, faults=200),  # clips are added while workers are killed
        tiny=FaultDose(tasks=4, faults=2),
    ),
)
