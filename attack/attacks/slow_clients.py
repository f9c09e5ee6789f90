"""Slow clients: half-sent headers, half-sent bodies and idle connections, many at once.

While they are open, others are served as before. The server closes them; nobody waits for a slow client for
ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from attack.attacks.attack import Attack
from attack.findings import AttackLog
from attack.target import Product

CONNECTIONS_IN_SHORT_DOSE, CONNECTIONS_IN_FULL_DOSE = 100, 2000
MAX_ANSWER_TIME_S = 20  # of another client meanwhile; an idle machine needs milliseconds
CLOSE_TIMEOUT_S = 120  # after this time a half-sent request must be gone; the time-outs are below a minute
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def build_half_requests(port: int, token: str) -> dict[str, bytes]:
    host = f"Host: 127.0.0.1:{port}\r\n"
    authorization = f"Authorization: {token}\r\n"
    return {
        "nothing": b"",
        "half a request line": b"GET /api/jo",
        "half a header": f"GET /healthz HTTP/1.1\r\n{host}X-Slow: ".encode(),
        "half a body": (
            f"POST /api/jobs/start HTTP/1.1\r\n{host}{authorization}Content-Type: application/json\r\n"
            'Content-Length: 1000\r\n\r\n{"type": '
        ).encode(),
        "half a chunk": (
            f"POST /api/jobs/start HTTP/1.1\r\n{host}{authorization}Content-Type: application/json\r\n"
            'Transfer-Encoding: chunked\r\n\r\n1000\r\n{"type"'
        ).encode(),
        "half a form": (
            f"POST /dashboard/login HTTP/1.1\r\n{host}Content-Type: application/x-www-form-urlencoded\r\n"
            "Content-Length: 1000\r\n\r\nkey="
        ).encode(),
    }


async def attack_with_slow_clients(product: Product, log: AttackLog) -> None:
    port = int(product.base.rpartition(":")[2])
    requests = build_half_requests(port, product.users["bob"].headers["authorization"])
    count = CONNECTIONS_IN_SHORT_DOSE if product.is_short else CONNECTIONS_IN_FULL_DOSE
    connections: list[tuple[str, Connection]] = []
    try:
        for number in range(count):
            name = list(requests)[number % len(requests)]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(requests[name])
            connections.append((name, (reader, writer)))
        started_at = time.monotonic()
        response = await product.send("GET", "/readyz", {})
        passed = response.status_code == 200 and time.monotonic() - started_at < MAX_ANSWER_TIME_S
        log.check_response(passed, response, "another client", "is not served meanwhile")
        await check_closed(log, connections)
    finally:
        for _, (_, writer) in connections:
            writer.close()


async def check_closed(log: AttackLog, connections: list[tuple[str, Connection]]) -> None:
    """Check that the server ends every half-sent request."""
    deadline = time.monotonic() + CLOSE_TIMEOUT_S

    async def is_closed(reader: asyncio.StreamReader) -> bool:
        with contextlib.suppress(ConnectionError):
            try:
                async with asyncio.timeout(max(deadline - time.monotonic(), 0.1)):
                    while await reader.read(65536):
                        pass
            except TimeoutError:
                return False
        return True

    results = await asyncio.gather(*(is_closed(reader) for _, (reader, _) in connections))
    still_open: dict[str, int] = {}
    for (name, _), closed in zip(connections, results, strict=True):
        log.checks += 1
        if not closed:
            still_open[name] = still_open.get(name, 0) + 1
    for name, number in still_open.items():
        problem = f"{number} connections with {name} are still open after {CLOSE_TIMEOUT_S} s"
        log.check(False, problem, f"send {name} and keep the connection open", "slow client")


ATTACK = Attack(
    "slow-clients",
    "half-sent headers and bodies, many at once",
    attack_with_slow_clients,
    in_short_dose=False,  # it waits for the time-outs of the server
)
