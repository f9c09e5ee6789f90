"""What a worker of the media system opens once, and the loop that starts waiting downloads."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from holdfast import Client, Settings, lifespan
from holdfast.egress import EgressClient, EgressPolicy
from holdfast.systems.media import share_queries as queries
from holdfast.systems.media.contracts import TranscriptionProvider
from holdfast.systems.media.transcripts import create_transcription_provider

START_INTERVAL_S: Final = 1.0
MAX_YTDLP_PROCESSES: Final = 4  # of one worker process
MAX_FFMPEG_PROCESSES: Final = 2
MAX_CONNECTIONS_PER_HOST: Final = 1_000  # the limit of downloads per host is in the database
SCRATCH_PREFIX: Final = "holdfast-media-"
MAX_PID_DIGITS: Final = 10
_log = logging.getLogger("holdfast.systems.media")


class MediaWorkerState:
    """The shared state of the tasks in one worker: client, guarded HTTP client and folders."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.settings = client.settings
        self.schema = client.settings.systems_schema
        self.policy = create_download_policy(client.settings)
        self.web = EgressClient(self.policy)
        self.ytdlp_slots = asyncio.Semaphore(MAX_YTDLP_PROCESSES)
        self.ffmpeg_slots = asyncio.Semaphore(MAX_FFMPEG_PROCESSES)
        self._transcription_provider: TranscriptionProvider | None = None

    @property
    def transcription_provider(self) -> TranscriptionProvider:
        """The provider of transcripts. It opens at first use."""
        if self._transcription_provider is None:
            self._transcription_provider = create_transcription_provider(self.settings)
        return self._transcription_provider

    async def close(self) -> None:
        """Close all connections."""
        await self.web.close()
        if self._transcription_provider is not None:
            await self._transcription_provider.close()

    async def start_downloads(self) -> None:
        """Start waiting downloads if there is room."""
        async with self.client.connection() as connection:
            await queries.start_downloads(connection, self.schema)

    @contextmanager
    def open_scratch_folder(self) -> Generator[Path]:
        """Create a folder for the files of one attempt, and delete it at the end of the block."""
        owner = f"{os.getpid()}-{find_start_time(os.getpid()) or 0}"
        folder = Path(tempfile.mkdtemp(prefix=f"{SCRATCH_PREFIX}{owner}-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def create_download_policy(settings: Settings) -> EgressPolicy:
    """Create the policy of downloads: the allow-list of the settings, with the limits of media files."""
    return replace(
        EgressPolicy.from_settings(settings),
        max_response_bytes=settings.media_max_bytes,
        total_timeout=settings.media_timeout,
        idle_timeout=settings.media_idle_timeout,
        max_connections_per_host=MAX_CONNECTIONS_PER_HOST,
    )


@asynccontextmanager
async def run_download_starter(state: MediaWorkerState) -> AsyncGenerator[None]:
    """Start waiting downloads every second while the block runs.

    Rows that were inserted by SQL, and shares whose time to retry has come, are found here.
    """
    task = asyncio.create_task(_start_downloads_forever(state))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _start_downloads_forever(state: MediaWorkerState) -> None:
    while True:
        try:
            await state.start_downloads()
        except Exception as error:
            # The database may be away for a moment. The next round starts what waits.
            _log.warning("Waiting downloads were not started: %s", type(error).__name__)
        await asyncio.sleep(START_INTERVAL_S)


def find_start_time(pid: int) -> str | None:
    """Return when a process started, as the kernel counts it, or None if it does not run any more.

    The number of a process is used again after its end, but not with the same start time.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    state, start_time = fields[0], fields[19]
    return None if state in "ZX" else start_time  # a killed process whose parent has not noticed it yet


def delete_stale_scratch_folders() -> None:
    """Delete the folders of worker processes that were killed. Without /proc, delete nothing."""
    if find_start_time(os.getpid()) is None:
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{SCRATCH_PREFIX}*"):
        pid, _, rest = folder.name.removeprefix(SCRATCH_PREFIX).partition("-")
        start_time = rest.partition("-")[0]
        if pid.isdecimal() and len(pid) < MAX_PID_DIGITS and find_start_time(int(pid)) != start_time:
            shutil.rmtree(folder, ignore_errors=True)


@lifespan
async def media_lifespan() -> AsyncIterator[MediaWorkerState]:
    """Open the state of the media system in a worker, and close it when the worker stops."""
    await asyncio.to_thread(delete_stale_scratch_folders)
    async with Client() as client:
        state = MediaWorkerState(client)
        try:
            async with run_download_starter(state):
                yield state
        finally:
            await state.close()
