"""Kill workers, launchers and programs of the media system in every phase of a download.

Each share is downloaded and processed, and every third one is transcribed. Some links are films, some are
pages that yt-dlp reads. The workers are started as users start them. The promises: nearly every download is
completed, exactly one file of each exists, and no temporary file and no object without a row is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from campaign.environment import FaultEnvironment
from campaign.processes import list_descendants
from campaign.runs import FaultDose, FaultRun
from holdfast import Client
from holdfast.devtools.demo_media import make_film, send_film
from holdfast.systems import media
from holdfast.testing import wait_until

OWNER = UUID("7c1f7d3e-0000-4000-8000-00000000cafe")
WORKERS = 2
PAGE_EVERY = 8  # a page costs yt-dlp five seconds of processor time
TRANSCRIPT_EVERY = 3
VICTIM_TIMEOUT_S = 20.0
MAX_KILLS_PER_PAGE = 2  # a download has three attempts, so the third kill would fail it on purpose
MIN_END_TIMEOUT_S = 400.0
END_TIMEOUT_PER_SHARE_S = 15.0  # two cores, and what was killed begins again
MIN_COMPLETED_SHARE = 0.99
# What a victim's command line contains, and the phase in which it is found.
VICTIMS = {
    "worker in a download": ("", "download"),
    "worker with its heartbeat": ("", "download"),
    "ffmpeg": ("ffmpeg-", "process"),
    "worker while ffmpeg runs": ("", "process"),
    "launcher": ("chromium_launcher", "process"),
    "speech recognition": ("speech_process", "transcribe"),
    "worker while it transcribes": ("", "transcribe"),
    "yt-dlp": ("ytdlp_process", "download"),
}


@asynccontextmanager
async def serve_films(film: bytes) -> AsyncGenerator[str]:
    """Serve the film slowly, and pages that show it. Yield the address."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            request = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            if request.split(" ")[1].startswith("/page"):
                body = b"<title>A film</title><video src='/film.mp4'></video>"
                head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n"
                writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
                await writer.drain()
            else:
                position = re.search(r"(?im)^range: bytes=(\d+)-", request)
                await send_film(writer, film, int(position[1]) if position else 0)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def kill_media_processes(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    """Share links, kill processes in every phase, and check what is left."""
    film = await asyncio.to_thread(make_film)
    async with serve_films(film) as address:
        scratch = env.folder / "tmp"
        scratch.mkdir(mode=0o1777)
        env.real_workers, env.worker_app = True, "holdfast.systems.media"
        env.worker_variables = {
            "HOLDFAST_HOME": str(env.folder / "home"),
            "HOLDFAST_EGRESS_ALLOW": address,
            "HOLDFAST_MEDIA_RETRY_DELAY": "500ms",
            "TMPDIR": str(scratch),
        }
        await _share_links(env, address, dose.tasks)
        await env.keep_workers_running(WORKERS)
        killed = await _inject_faults(env, dose.faults)
        await _wait_until_finished(env, max(MIN_END_TIMEOUT_S, END_TIMEOUT_PER_SHARE_S * dose.tasks))
        return {"killed": dict(killed), **await _check_remains(env, scratch, len(film))}


async def _share_links(env: FaultEnvironment, address: str, count: int) -> None:
    async with env.open_connection() as connection:
        await media.install(connection)
        for number in range(count):
            name = f"page{number}" if number % PAGE_EVERY == 0 else f"film{number}.mp4"
            await connection.execute(
                "insert into shares (user_id, url, options)"
                " values ($1, $2, jsonb_build_object('transcribe', $3::boolean))",
                *(OWNER, f"http://{address}/{name}", number % TRANSCRIPT_EVERY == 0),
            )


async def _inject_faults(env: FaultEnvironment, count: int) -> Counter[str]:
    killed: Counter[str] = Counter()
    for number in env.iterate_faults(count):
        name = list(VICTIMS)[number % len(VICTIMS)]
        pid = await _find_victim(env, *VICTIMS[name])
        if pid is None:
            continue
        if pid in env.live_workers:
            env.kill_worker(pid, with_children=name.endswith("heartbeat"))
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed[name] += 1
        await env.keep_workers_running(WORKERS)
        await asyncio.sleep(env.random.uniform(0.2, 2.0))
    return killed


async def _find_victim(env: FaultEnvironment, command: str, phase: str) -> int | None:
    """Wait until a share is in a phase and a process fits. Return None if that does not happen."""
    deadline = time.monotonic() + VICTIM_TIMEOUT_S
    while time.monotonic() < deadline:
        if command:
            programs = [
                pid for worker in env.live_workers for pid in list_descendants(worker) if _runs(pid, command)
            ]
            if programs and not (command == "ytdlp_process" and await _has_worn_page(env)):
                return env.random.choice(programs)
        elif await _count_shares(env, phase):
            return env.random.choice(sorted(env.live_workers))
        await asyncio.sleep(0.02)
    return None


async def _has_worn_page(env: FaultEnvironment) -> bool:
    """Return whether a page that yt-dlp may be reading was killed as often as it may be.

    Which process reads which page is not seen from outside. Each kill of yt-dlp counts as a failed attempt.
    """
    async with env.open_connection() as connection:
        query = (
            "select count(*) from shares where uses_ytdlp and download_status = 'processing'"
            " and download_attempts >= $1"
        )
        return bool(await connection.fetchval(query, MAX_KILLS_PER_PAGE))


def _runs(pid: int, command: str) -> bool:
    arguments = ""
    with contextlib.suppress(OSError):
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    is_launcher = "chromium_launcher" in arguments
    if command == "chromium_launcher":
        # A launcher of yt-dlp would be killed beside the limit of kills per page.
        return is_launcher and "ytdlp_process" not in arguments
    # The launcher and the confinement name the program in their arguments, too.
    return not is_launcher and command in (arguments.split("\0")[0] if command == "ffmpeg-" else arguments)


async def _count_shares(env: FaultEnvironment, phase: str) -> int:
    columns = {"download": "download", "process": "processing", "transcribe": "transcript"}
    async with env.open_connection() as connection:
        query = f"select count(*) from shares where {columns[phase]}_status = 'processing'"
        return int(await connection.fetchval(query))


async def _wait_until_finished(env: FaultEnvironment, timeout_s: float) -> None:
    unfinished = (
        "select count(*) from shares where download_status in ('pending', 'processing', 'retry')"
        " or processing_status in ('waiting', 'processing') or transcript_status in ('waiting', 'processing')"
    )
    deadline = time.monotonic() + timeout_s
    while True:
        async with env.open_connection() as connection:
            count = await connection.fetchval(unfinished)
        if not count:
            return
        assert time.monotonic() < deadline, f"{count} shares did not end in {timeout_s:.0f} s"
        await env.keep_workers_running(WORKERS)
        await asyncio.sleep(0.2)


async def _check_remains(env: FaultEnvironment, scratch: Path, size: int) -> dict[str, object]:
    async with env.open_connection() as connection:
        rows = await connection.fetch(
            "select s.url, s.download_error, s.download_attempts, s.uses_ytdlp,"
            " s.download_status, s.processing_status, s.transcript_status, (select count(*)"
            " from holdfast.artifacts a where a.job_id = s.job_id and a.status = 'visible'"
            " and a.kind = 'media' and a.size = $1) as files from shares s",
            size,
        )
        await connection.execute(
            "update holdfast.artifacts set touched_at = now() - interval '10 minutes'"
            " where status <> 'visible'"
        )
        await connection.execute("select holdfast.tick_artifacts()")
        visible = await connection.fetchval(
            "select count(*) from holdfast.artifacts where status = 'visible'"
        )
    completed = [row for row in rows if row["download_status"] == "completed"]
    failed = [
        f"{row['url']} after {row['download_attempts']} attempts: {row['download_error']}"
        for row in rows
        if row not in completed
    ]
    assert len(failed) <= (1 - MIN_COMPLETED_SHARE) * len(rows), f"downloads failed: {failed}"
    wrong = [row["files"] for row in completed if row["files"] != 1]
    assert not wrong, f"shares with another number of complete files than one: {wrong}"
    # Folders of killed workers are deleted when the next worker starts.
    await env.stop_workers()
    await env.keep_workers_running(1)

    def list_left_folders() -> list[str]:
        return sorted(path.name for path in scratch.iterdir())

    await wait_until(lambda: not list_left_folders(), what=f"{list_left_folders()} are deleted")
    settings = replace(env.settings, home=env.folder / "home")
    async with Client(env.url.reveal(), settings=settings) as client:
        await client.files.sweep()
        objects = sum([len(page) async for page in client.files.store.list()])
    assert objects == visible, f"{objects} objects are stored, and {visible} files exist"
    return {
        "downloads completed": f"{len(completed)} of {len(rows)}",
        "processing": dict(Counter(row["processing_status"] for row in rows)),
        "transcripts": dict(Counter(row["transcript_status"] for row in rows)),
        "stored objects": objects,
        "pages by kills": dict(Counter(row["download_attempts"] for row in rows if row["uses_ytdlp"])),
    }


FAULT_RUNS = (
    FaultRun(
        "media-kills",
        "kill workers, launchers, ffmpeg, yt-dlp and speech recognition while media is downloaded",
        kill_media_processes,
        short=FaultDose(tasks=16, faults=16),
        full=FaultDose(tasks=200, faults=200),
        tiny=FaultDose(tasks=3, faults=2),
    ),
)
