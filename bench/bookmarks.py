"""Benchmark of bookmarks on local pages: time of an addition, CPU time of a bookmark, memory of the worker.

    python -m bench.bookmarks postgresql://postgres@127.0.0.1:5432/postgres [--pages 500] [--rounds 40]
        [--minutes 5]

The role must be able to create databases; the benchmark creates one and drops it. API and worker are
processes of their own, started by the commands of the documentation.

adding   requests are sent at a fixed rate while the worker captures; a request that starts late counts late
cpu      the worker with all its processes, against the capture and the OCR alone (same pages, same run)
memory   proportional set size (PSS) of the worker with its browser and decoders, early and late
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import time
from typing import Any

from bench.page_server import make_image, run_page_server
from bench.system_processes import (
    SystemBenchmark,
    TimeBudget,
    add_budget_option,
    choose_port,
    create_bench_database,
    create_user_headers,
    print_rows_at_once,
    read_cpu_seconds,
    read_pss_megabytes,
)
from holdfast.egress import EgressAllowlist, EgressClient, EgressPolicy
from holdfast.systems.capture import BrowserPool, MediaDecoder, capture_page

ADD_PATH = "/api/v1/bookmarks/add/data"
ADDS_PER_SECOND = 50
ADD_SECONDS = 20
MAX_ADD_P95_MS = 100
MAX_CPU_RATIO = 1.3


class BookmarkBenchmark(SystemBenchmark):
    """The system on one database: the API, users, and the worker when it runs."""

    async def add(self, headers: dict[str, str], path: str) -> None:
        body = {"url": f"http://{self.site}/{path}"}
        response = await self.http.post(ADD_PATH, json=body, headers=headers)
        response.raise_for_status()

    async def add_many(self, count: int, name: str) -> None:
        headers = create_user_headers()
        for number in range(count):
            await self.add(headers, f"{name}-{number}")

    async def wait_until_complete(self, count: int, deadline: float, on_progress: Any = None) -> int:
        """Wait until this many bookmarks are complete or the time is over. Return how many are.

        Call `on_progress` with their number while waiting.
        """
        while True:
            failed = await self.fetch_value(
                "select count(*) from bookmarks where status in ('failed', 'retrying')"
            )
            done = await self.fetch_value("select count(*) from bookmarks where status = 'complete'")
            if on_progress:
                on_progress(done)
            if done + failed >= count or time.monotonic() > deadline:
                if failed:
                    print(f"{failed} bookmarks failed or are retried")
                return int(done)
            await asyncio.sleep(0.5)

    async def clear(self) -> None:
        await self.fetch_value("select pgmq.purge_queue('add-bookmark-url-queue')")
        await self.fetch_value("delete from bookmarks returning id")


async def measure_adds(bench: BookmarkBenchmark) -> None:
    """Add bookmarks of 20 users at a fixed rate while the worker captures."""
    users = [create_user_headers() for _ in range(20)]
    count = ADDS_PER_SECOND * ADD_SECONDS
    times: list[float] = []
    for number in range(20):  # warm-up
        await bench.add(users[number], "warm-up")

    async def add_at(number: int, due: float) -> None:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        await bench.add(users[number % len(users)], f"add-{number}")
        times.append((time.perf_counter() - due) * 1000)

    started = time.perf_counter() + 0.5
    await asyncio.gather(*(add_at(number, started + number / ADDS_PER_SECOND) for number in range(count)))
    times.sort()
    p50, p95, p99 = (times[int(len(times) * part)] for part in (0.5, 0.95, 0.99))
    print(
        f"add at {ADDS_PER_SECOND}/s during captures   p50 {p50:.1f} ms   p95 {p95:.1f} ms   p99 {p99:.1f} ms"
        f"   n {count}   (target p95 {MAX_ADD_P95_MS} ms)"
    )
    await bench.clear()


async def measure_bare_cpu(site: str, rounds: int) -> tuple[float, float]:
    """Return the CPU seconds of a capture and of an OCR, with nothing around them."""
    policy = EgressPolicy(allowlist=EgressAllowlist.parse(site))
    picture = make_image(1200, 630)
    async with BrowserPool(policy) as browsers, EgressClient(policy) as egress, MediaDecoder() as decoder:

        async def capture(number: int) -> None:
            await capture_page(
                f"http://{site}/bare-{number}", browsers=browsers, egress=egress, decoder=decoder
            )

        await capture(-1)
        await decoder.read_image_text(picture)
        before = read_cpu_seconds(os.getpid())
        for number in range(rounds):
            await capture(number)
        between = read_cpu_seconds(os.getpid())
        for _ in range(rounds):
            await decoder.read_image_text(picture)
        after = read_cpu_seconds(os.getpid())
    return (between - before) / rounds, (after - between) / rounds


async def measure_cpu(bench: BookmarkBenchmark, worker: int, rounds: int, deadline: float) -> None:
    await bench.add_many(4, "first")
    first = await bench.wait_until_complete(4, deadline)
    before = read_cpu_seconds(worker)
    await bench.add_many(rounds, "cpu")
    # Half of the time is for the capture and the OCR alone.
    half = time.monotonic() + (deadline - time.monotonic()) / 2
    rounds = await bench.wait_until_complete(first + rounds, half) - first
    if rounds <= 0:
        print("CPU of a bookmark   no bookmark was complete in time")
        return
    bookmark = (read_cpu_seconds(worker) - before) / rounds
    capture, ocr = await measure_bare_cpu(bench.site, rounds)
    print(
        f"CPU of a bookmark   {bookmark:.2f} s   capture alone {capture:.2f} s   OCR alone {ocr:.2f} s"
        f"   ratio {bookmark / (capture + ocr):.2f}   n {rounds}   (target {MAX_CPU_RATIO})"
    )
    await bench.clear()


async def measure_memory(bench: BookmarkBenchmark, worker: int, pages: int, deadline: float) -> None:
    await bench.add_many(pages, "memory")
    samples: list[tuple[int, float]] = []

    def sample(done: int) -> None:
        if not samples or done >= samples[-1][0] + max(1, pages // 100):
            samples.append((done, read_pss_megabytes(worker)))

    pages = await bench.wait_until_complete(pages, deadline, sample)
    early = [size for done, size in samples if pages * 0.1 <= done < pages * 0.3]
    late = [size for done, size in samples if done >= pages * 0.8]
    if early and late:
        first, last, peak = (
            statistics.median(early),
            statistics.median(late),
            max(size for _, size in samples),
        )
        print(
            f"PSS with browser   early {first:.0f} MB   late {last:.0f} MB   ratio {last / first:.2f}"
            f"   peak {peak:.0f} MB   n {pages}   (target: flat)"
        )


async def run_benchmark(server_url: str, pages: int, rounds: int, minutes: float) -> None:
    budget = TimeBudget(minutes)
    async with create_bench_database(server_url) as (url, folder), run_page_server() as site:
        await measure_all(BookmarkBenchmark(url, site, folder), pages, rounds, budget)


async def measure_all(bench: BookmarkBenchmark, pages: int, rounds: int, budget: TimeBudget) -> None:
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    port = choose_port()
    async with bench.run("api", "--system", "bookmarks", "--port", str(port)):
        await bench.wait_for_api(f"http://127.0.0.1:{port}")
        async with bench.run("worker", "holdfast.systems.bookmarks") as worker:
            await measure_cpu(bench, worker, rounds, budget.take_share(0.35))
            await measure_adds(bench)
        async with bench.run("worker", "holdfast.systems.bookmarks") as worker:
            await measure_memory(bench, worker, pages, budget.take_share(1.0))
    await bench.http.aclose()
    print(f"load average {os.getloadavg()[0]:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url", help="URL of a PostgreSQL server")
    parser.add_argument("--pages", type=int, default=500, help="pages for the memory (500)")
    parser.add_argument("--rounds", type=int, default=40, help="pages for the CPU time (40)")
    add_budget_option(parser)
    options = parser.parse_args()
    print_rows_at_once()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the processes and drops the database
    asyncio.run(run_benchmark(options.url, options.pages, options.rounds, options.minutes))


if __name__ == "__main__":
    main()
