"""Request a path at a fixed rate until the standard input ends, then print the times as JSON.

    python -m bench.request_rate http://127.0.0.1:8000/api/v1/shares TOKEN REQUESTS_PER_SECOND

It is a process of its own, so that what else a benchmark does, such as serving files, does not delay it. A
request that starts late counts late. The times are in milliseconds, sorted.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from urllib.parse import urlsplit

from bench.http_clients import HttpConnection


async def request_until_end(url: str, token: str, rate: float) -> list[float]:
    path, times, requests = urlsplit(url).path, list[float](), set[asyncio.Task[None]]()
    idle: list[HttpConnection] = []

    async def request_at(due: float) -> None:
        connection = idle.pop() if idle else HttpConnection(url)
        status, body = await connection.request("GET", path, token)
        if status != 200:
            raise RuntimeError(f"The API answered with {status}: {body[:200]!r}")
        times.append((time.perf_counter() - due) * 1000)
        idle.append(connection)

    end, due = asyncio.create_task(asyncio.to_thread(sys.stdin.read)), time.perf_counter()
    while not end.done():
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        requests.add(asyncio.create_task(request_at(due)))
        due += 1 / rate
    await asyncio.gather(*requests)
    return sorted(times)


def main() -> None:
    url, token, rate = sys.argv[1:]
    print(json.dumps(asyncio.run(request_until_end(url, token, float(rate)))))


if __name__ == "__main__":
    main()
