"""Benchmark of media downloads from a local server: many at once, one large file, and the API meanwhile.

    python -m bench.media postgresql://postgres@127.0.0.1:5432/postgres [--files 100] [--large-mb 2048]
        [--minutes 5]

The role must be able to create databases; the benchmark creates one and drops it. API and workers are
processes of their own, started by the commands of the documentation. Files go to a folder on disk.

at once  the server holds every response until all downloads have begun, so all of them run at the same time
api      requests for the list of shares at a fixed rate meanwhile, by a process of its own; one that starts
         late counts late
large    one file of 2 GB: memory of its worker as PSS with all its processes, and its rate as a ratio to
         `curl` piped into the multipart client of the same store
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from bench.system_processes import (
    SystemBenchmark,
    TimeBudget,
    add_budget_option,
    choose_port,
    create_bench_database,
    create_user_headers,
    list_process_tree,
    print_rows_at_once,
    read_pss_megabytes,
)
from holdfast.testing import wait_until

SHARES_PATH = "/api/v1/shares"
WORKER_PROCESSES, SLOTS_PER_PROCESS = 3, 40
MEGABYTE = 1024 * 1024
FILE_MEGABYTES = 10
REQUESTS_PER_SECOND = 20
MAX_API_P95_MS = 100
MAX_WORKER_MEGABYTES = 150
MIN_CURL_RATIO = 0.8
START_TIMEOUT = timedelta(minutes=1)
MP4_HEAD = b"\x00\x00\x00\x20ftypisom\x00\x00\x02\x00isomiso2avc1mp41"
MULTIPART_CLIENT = """
import sys, obstore
from obstore.store import LocalStore
store, part = LocalStore(sys.argv[1]), 8 * 1024 * 1024
obstore.put(store, "large", sys.stdin.buffer, use_multipart=True, chunk_size=part)
"""


@dataclass
class FileServer:
    """Serves one file at every path. With a gate, each response waits for it after its first bytes."""

    path: Path
    address: str = ""
    gate: asyncio.Event | None = None
    open_responses: int = 0
    max_open_responses: int = 0
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            size = self.path.stat().st_size
            head = f"HTTP/1.1 200 OK\r\nContent-Type: video/mp4\r\nContent-Length: {size}\r\n"
            writer.write(head.encode() + b"Connection: close\r\n\r\n" + MP4_HEAD)
            await writer.drain()
            self.open_responses += 1
            self.max_open_responses = max(self.max_open_responses, self.open_responses)
            self.begun.set()
            try:
                if self.gate is not None:
                    await self.gate.wait()
                with self.path.open("rb") as file:
                    await asyncio.get_running_loop().sendfile(writer.transport, file, len(MP4_HEAD))
            finally:
                self.open_responses -= 1
        writer.close()


@asynccontextmanager
async def serve_file(megabytes: int, folder: Path) -> AsyncIterator[FileServer]:
    path = folder / f"{megabytes}.mp4"
    with path.open("wb") as file:
        file.write(MP4_HEAD)
        block = os.urandom(MEGABYTE)
        for _ in range(megabytes):
            file.write(block)
    server = FileServer(path)
    listener = await asyncio.start_server(server.answer, "127.0.0.1", 0)
    server.address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
        path.unlink()


class MediaBenchmark(SystemBenchmark):
    """The media system on one database."""

    async def share(self, headers: dict[str, str], address: str, name: str) -> None:
        body = {"url": f"http://{address}/{name}.mp4", "transcribe": False}
        (await self.http.post(SHARES_PATH, json=body, headers=headers)).raise_for_status()

    async def wait_until_downloaded(self, count: int, deadline: float) -> int:
        """Wait until this many downloads have ended or the time is over. Return how many are complete."""
        ended = "(select count(*) from shares where download_status in ('completed', 'failed'))"
        await self.wait_for(f"select {ended} >= {count}", deadline, "downloads")
        failed = await self.fetch_value("select count(*) from shares where download_status = 'failed'")
        if failed:
            print(f"{failed} downloads failed")
        return int(await self.fetch_value("select count(*) from shares where download_status = 'completed'"))

    async def wait_until_processed(self, deadline: float) -> None:
        unfinished = "select count(*) = 0 from shares where processing_status in ('waiting', 'processing')"
        await self.wait_for(unfinished, deadline, "pictures and sounds of the downloads")

    async def wait_for_worker(self) -> None:
        query = "select count(*) > 0 from holdfast.workers where stopped_at is null"
        try:
            await wait_until(lambda: self.fetch_value(query), within=START_TIMEOUT)
        except AssertionError:
            raise SystemExit(f"The worker did not start:\n{self.log.read_text()[-2000:]}") from None

    async def wait_for(self, query: str, deadline: float, what: str) -> None:
        """Wait until a query answers true. Print what did not end when the time is over."""
        within = timedelta(seconds=max(1.0, deadline - time.monotonic()))
        try:
            await wait_until(lambda: self.fetch_value(query), within=within)
        except AssertionError:
            print(f"not finished in time: {what}")


@dataclass(frozen=True)
class ApiTimes:
    """Times of requests in milliseconds, and what the process of the API needed for one."""

    p50: float
    p95: float
    count: int
    cpu: float
    waiting: float


@asynccontextmanager
async def measure_api(bench: MediaBenchmark, api: int) -> AsyncIterator[list[ApiTimes]]:
    """Request the list of shares at a fixed rate in the block. The list has the times afterwards."""
    url = str(bench.http.base_url).rstrip("/") + SHARES_PATH
    token = create_user_headers()["authorization"].split()[1]
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.request_rate", url, token, str(REQUESTS_PER_SECOND)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    before, result = read_scheduled_ms(api), list[ApiTimes]()
    yield result
    output, _ = await client.communicate(b"")
    times = json.loads(output)
    cpu, waiting = (
        (after - first) / len(times) for first, after in zip(before, read_scheduled_ms(api), strict=True)
    )
    p50, p95 = (times[int(len(times) * part)] for part in (0.5, 0.95))
    result.append(ApiTimes(p50, p95, len(times), cpu, waiting))


def read_scheduled_ms(root: int) -> tuple[float, float]:
    """Return how long the threads of a process tree ran, and how long they waited for a processor."""
    running = waiting = 0
    for pid in list_process_tree(root):
        for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):
                numbers = file.read_text().split()
                running, waiting = running + int(numbers[0]), waiting + int(numbers[1])
    return running / 1e6, waiting / 1e6


async def measure_many(
    bench: MediaBenchmark, server: FileServer, processes: tuple[int, int], count: int, deadline: float
) -> None:
    """Download many files at once, and measure the API and the memory of the workers meanwhile."""
    server.gate, (api, workers) = asyncio.Event(), processes
    before = await bench.fetch_value("select count(*) from shares where download_status = 'completed'")
    total = await bench.fetch_value("select count(*) from shares")
    users = [create_user_headers() for _ in range(20)]
    for number in range(count):
        await bench.share(users[number % len(users)], server.address, f"many-{number}")
    with contextlib.suppress(AssertionError):  # the row says how many there were
        within = timedelta(seconds=max(1.0, (deadline - time.monotonic()) / 2))
        await wait_until(lambda: server.open_responses >= count, within=within)
    async with measure_api(bench, api) as api_times:
        await asyncio.sleep(2)
        server.gate.set()
        started = time.perf_counter()
        download = asyncio.create_task(bench.wait_until_downloaded(total + count, deadline))
        peak = 0.0
        while not download.done():
            peak = max(peak, await asyncio.to_thread(read_largest_process, workers))
            await asyncio.sleep(0.5)
        seconds = time.perf_counter() - started
    [times] = api_times
    megabytes = (await download - before) * FILE_MEGABYTES
    print(
        f"{server.max_open_responses} downloads at once by {WORKER_PROCESSES} processes"
        f"   {megabytes} MB in {seconds:.1f} s"
        f"   peak PSS of a process {peak:.0f} MB   API p50 {times.p50:.1f} ms   p95 {times.p95:.1f} ms"
        f"   n {times.count}   (target p95 {MAX_API_P95_MS} ms)   per request its process ran"
        f" {times.cpu:.1f} ms and waited {times.waiting:.1f} ms for a processor"
    )
    await bench.wait_until_processed(deadline)


def read_largest_process(supervisor: int) -> float:
    """Return the megabytes of the largest worker process."""
    return max(read_pss_megabytes(pid) for pid in find_worker_processes(supervisor))


def find_worker_processes(supervisor: int) -> list[int]:
    """Return the worker processes below their supervisor, or the process itself."""
    children = [
        pid for pid in list_process_tree(supervisor) if pid != supervisor and _read_parent(pid) == supervisor
    ]
    return children or [supervisor]


def _read_parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


async def measure_large(
    bench: MediaBenchmark, server: FileServer, worker: int, folder: Path, deadline: float
) -> None:
    """Download one large file: memory of the worker, and the rate beside that of curl and the same store."""
    server.gate, size = None, server.path.stat().st_size / MEGABYTE
    curl = await asyncio.to_thread(run_curl, server.address, folder)
    before = read_pss_megabytes(worker)
    total = await bench.fetch_value("select count(*) from shares")
    await bench.share(create_user_headers(), server.address, "large")
    download = asyncio.create_task(bench.wait_until_downloaded(total + 1, deadline))
    samples: list[float] = []
    while not download.done():
        samples.append(await asyncio.to_thread(read_pss_megabytes, worker))
        await asyncio.sleep(0.2)
    seconds = await bench.fetch_value(
        "select extract(epoch from download_completed_at - download_started_at)::float8 from shares"
        " where url like '%/large.mp4'"
    )
    if seconds is None:
        print(f"one file of {size:.0f} MB   not complete in time   peak {max(samples):.0f} MB")
        return
    again = await asyncio.to_thread(run_curl, server.address, folder)
    curl_seconds = statistics.mean([curl, again])
    print(
        f"one file of {size:.0f} MB   {size / seconds:.0f} MB/s   curl {size / curl_seconds:.0f} MB/s"
        f"   ratio {curl_seconds / seconds:.2f} (target {MIN_CURL_RATIO})   PSS before {before:.0f} MB"
        f"   median {statistics.median(samples):.0f} MB   peak {max(samples):.0f} MB"
        f"   (target below {MAX_WORKER_MEGABYTES} MB)"
    )


def run_curl(address: str, folder: Path) -> float:
    """Return the seconds of `curl` piped into the multipart client of the store."""
    target = folder / "curl"
    target.mkdir(exist_ok=True)
    started = time.perf_counter()
    curl = subprocess.Popen(["curl", "-sS", f"http://{address}/curl"], stdout=subprocess.PIPE)
    subprocess.run([sys.executable, "-c", MULTIPART_CLIENT, target], stdin=curl.stdout, check=True)
    if curl.wait():
        raise SystemExit("curl failed")
    seconds = time.perf_counter() - started
    (target / "large").unlink()
    return seconds


async def run_benchmark(server_url: str, files: int, large_megabytes: int, minutes: float) -> None:
    budget = TimeBudget(minutes)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    async with create_bench_database(server_url) as (url, home):
        with tempfile.TemporaryDirectory(dir=home) as folder:
            async with (
                serve_file(FILE_MEGABYTES, Path(folder)) as small,
                serve_file(large_megabytes, Path(folder)) as large,
            ):
                bench = MediaBenchmark(url, f"{small.address},{large.address}", home)
                bench.environment["HOLDFAST_MEDIA_MAX_BYTES"] = str(8 << 30)
                await measure_all(bench, small, large, files, Path(folder), budget)
    print(f"load average {os.getloadavg()[0]:.1f}")


async def measure_all(
    bench: MediaBenchmark,
    small: FileServer,
    large: FileServer,
    files: int,
    folder: Path,
    budget: TimeBudget,
) -> None:
    port, worker = choose_port(), ("worker", "holdfast.systems.media")
    async with bench.run("api", "--system", "media", "--port", str(port)) as api:
        await bench.wait_for_api(f"http://127.0.0.1:{port}")
        await bench.fetch_value(
            "update holdfast.limit_rules set max_running = 1000 where name like '%of one host' returning 1"
        )
        options = ("--processes", str(WORKER_PROCESSES), "-c", str(SLOTS_PER_PROCESS))
        # The large file comes first: what is left of many small ones would take its worker's time.
        async with bench.run(*worker, "-c", "4") as single:
            await bench.wait_for_worker()
            await measure_large(bench, large, single, folder, budget.take_share(0.4))
        async with bench.run(*worker, *options) as workers:
            await measure_many(bench, small, (api, workers), files, budget.take_share(1.0))
    await bench.http.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url", help="URL of a PostgreSQL server")
    parser.add_argument("--files", type=int, default=100, help="downloads at once (100)")
    parser.add_argument("--large-mb", type=int, default=2048, help="megabytes of the large file (2048)")
    add_budget_option(parser)
    options = parser.parse_args()
    print_rows_at_once()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the processes and drops the database
    asyncio.run(run_benchmark(options.url, options.files, options.large_mb, options.minutes))


if __name__ == "__main__":
    main()
