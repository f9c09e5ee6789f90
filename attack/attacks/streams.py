"""Event streams: too many, other users' jobs, tickets used twice or elsewhere, and invented event ids."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx
from api_clients import EventStreamReader, bearer_headers, make_token, open_event_stream

from attack.attacks.attack import Attack
from attack.findings import AttackLog
from attack.identities import User, create_key
from attack.population import find_marker
from attack.target import Product
from holdfast.engine import access

MAX_USER_STREAMS = 16  # the default of the setting user_streams
END_TIMEOUT_S = 30  # a stream ends within a second or two; the machine may be busy


def build_stream_path(user: User) -> str:
    return f"/api/jobs/{user.ids['waiting_job']}/events"


async def attack_number_of_streams(product: Product, log: AttackLog) -> None:
    """Open more streams than a user may have. The others still work, and closed streams are given back."""
    ann, bob = product.users["ann"], product.users["bob"]
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=product.base, timeout=60, limits=limits) as client:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(MAX_USER_STREAMS):
                stream = await stack.enter_async_context(
                    open_event_stream(client, build_stream_path(bob), bob.headers)
                )
                log.check(stream.response.status_code == 200, "a stream within the limit was refused")
            for _ in range(20):
                refused = await client.get(build_stream_path(bob), headers=bob.headers)
                log.check_response(refused.status_code == 429, refused, "owner", "more streams than allowed")
            other = await product.send("GET", build_stream_path(ann), ann.headers)
            log.check_response(other.status_code == 200, other, "another user", "the limit hits others")
        deadline = time.monotonic() + END_TIMEOUT_S
        while time.monotonic() < deadline:
            again = await product.send("GET", build_stream_path(bob), bob.headers)
            if again.status_code == 200:
                break
            await asyncio.sleep(0.1)
        log.check_response(again.status_code == 200, again, "owner", "closed streams still count")


async def attack_tickets(product: Product, log: AttackLog) -> None:
    """Use a ticket twice, for another job, for another kind of object, and as another credential."""
    ann, bob = product.users["ann"], product.users["bob"]
    path = build_stream_path(ann)
    stolen = await product.send("POST", path.replace("/events", "/ticket"), bob.headers)
    log.check_response(stolen.status_code == 404, stolen, "other user", "a ticket for a job of ann")
    created = await product.send("POST", path.replace("/events", "/ticket"), ann.headers)
    ticket = created.json()["ticket"]
    for other in (build_stream_path(bob), f"/api/jobs/{ann.ids['job']}/events", "/api/jobs", "/api/usage"):
        response = await product.send("GET", f"{other}?ticket={ticket}", {})
        log.check_response(response.status_code in (401, 404, 422), response, "ticket", "opens another path")
    for headers in (bearer_headers(ticket), {"apikey": ticket}, {"cookie": f"holdfast_stream={ticket}"}):
        response = await product.send("GET", path, headers)
        log.check_response(response.status_code == 401, response, "ticket as credential", "was accepted")
    first = await product.send("GET", f"{path}?ticket={ticket}", {})
    log.check_response(first.status_code == 200, first, "ticket", "the ticket works once")
    product.http.cookies.clear()
    second = await product.send("GET", f"{path}?ticket={ticket}", {})
    log.check_response(second.status_code == 401, second, "ticket", "the ticket works twice")
    cookie = first.headers.get("set-cookie", "").partition(";")[0]
    for other in (build_stream_path(bob), "/api/jobs", f"/api/jobs/{ann.ids['waiting_job']}"):
        response = await product.send("GET", other, {"cookie": cookie})
        log.check_response(response.status_code == 401, response, "pass cookie", "opens another path")


async def attack_event_ids(product: Product, log: AttackLog) -> None:
    """Ask for events that do not exist, of every path of streams, as owner and as another user."""
    ann, bob = product.users["ann"], product.users["bob"]
    paths = [
        f"/api/jobs/{ann.ids['job']}/events",
        f"/api/batches/{ann.ids['batch']}/events",
        f"/api/v1/export/job/{ann.ids['export_job']}/stream",
        f"/api/v1/export/batch/{ann.ids['export_batch']}/stream",
        f"/api/jobs/{ann.ids['report']}/stream",
    ]
    values = ["-1", "0", "999999999999999999", "9" * 30, "1e9", "x", "\u0663".encode(), b"\xff", "1, 2"]
    for path in paths:
        for value in values:
            for who, headers in (("owner", ann.headers), ("other user", bob.headers)):
                response = await product.send("GET", path, {**headers, "last-event-id": value})  # type: ignore[dict-item]
                log.check_response(response.status_code < 500, response, who, "server error")
                if who == "other user":
                    leaked = find_marker(ann, response)
                    passed = leaked is None and response.status_code in (404, 422, 400)
                    log.check_response(passed, response, who, f"expected 404, shows {leaked}")


async def attack_ended_rights(product: Product, log: AttackLog) -> None:
    """Keep a stream open while its right ends: the token expires, or the key is revoked."""
    ann = product.users["ann"]
    expiring = bearer_headers(make_token(ann.id, exp=int(time.time()) + 3))
    key = await create_key(product.connection, "jobs")
    ticket_path = build_stream_path(ann).replace("/events", "/ticket")
    ticket = (await product.send("POST", ticket_path, bearer_headers(key))).json()["ticket"]
    async with (
        open_stream(product, ann, expiring) as first,
        open_stream(product, ann, bearer_headers(key)) as second,
    ):
        await access.revoke_service_key(product.connection, key[:11])
        for name, stream in (("expired token", first), ("revoked key", second)):
            ended = await wait_for_end(stream)
            log.check(ended, f"a stream outlives its {name}", f"GET {build_stream_path(ann)}", name)
    late = await product.send("GET", f"{build_stream_path(ann)}?ticket={ticket}", {})
    log.check_response(late.status_code == 401, late, "ticket of a revoked key", "outlives its key")


@asynccontextmanager
async def open_stream(
    product: Product, user: User, headers: dict[str, str]
) -> AsyncGenerator[EventStreamReader]:
    async with (
        httpx.AsyncClient(base_url=product.base, timeout=60) as client,
        open_event_stream(client, build_stream_path(user), headers) as stream,
    ):
        yield stream


async def wait_for_end(stream: EventStreamReader) -> bool:
    """Return whether the server closes a stream in time."""
    try:
        async with asyncio.timeout(END_TIMEOUT_S):
            while await stream.read_next(END_TIMEOUT_S) is not None:
                pass
    except (TimeoutError, httpx.TransportError):
        return False
    return True


async def attack_streams(product: Product, log: AttackLog) -> None:
    await attack_number_of_streams(product, log)
    await attack_tickets(product, log)
    await attack_event_ids(product, log)
    await attack_ended_rights(product, log)


ATTACK = Attack("streams", "too many streams, tickets used twice, event ids, ended rights", attack_streams)
