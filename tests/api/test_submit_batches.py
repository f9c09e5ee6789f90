"""Jobs that requests submit at the same time share statements, and no request notices another one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID

import httpx
import pytest
from api_clients import bearer_headers, make_token
from book_app import SERVICE_KEY
from msgspec import Struct
from starlette.applications import Starlette

from holdfast import job, task
from holdfast.engine import quotas, task_types
from holdfast.engine.connection import Connection, Database
from holdfast.engine.jobs import SubmitResult
from holdfast.errors import DatabaseUnavailableError, InvalidError
from holdfast.server import create_app
from holdfast.server.api.submit_batches import SubmitBatcher, SubmitCall
from holdfast.settings import Settings
from holdfast.testing import wait_until

SERVICE = bearer_headers(SERVICE_KEY)
PLAIN = {"type": "page", "queue": "q", "args": {"number": 1}}
COUNT_JOBS = "select count(*) from holdfast.tasks"


class Sheet(Struct):
    number: int = 1


@task(queue="q")
def page(number: int) -> int:
    return number


@job("sheet", params=Sheet, public=True)
def sheet_job(sheet: Sheet) -> Any:
    return page(sheet.number)


@pytest.fixture
def app(db: Database, api_settings: Settings) -> Starlette:
    return create_app(replace(api_settings, user_jobs=5), database=db, job_types=[sheet_job])


@pytest.fixture
async def batch_sizes(api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of jobs of each statement for several, after one job, so that its lane exists."""
    assert (await api.post("/api/jobs", json=PLAIN, headers=SERVICE)).status_code == 202
    sizes: list[int] = []
    submit_together = quotas.submit_together

    async def count_jobs(connection: Connection, jobs: Any, *args: Any, **options: Any) -> Any:
        sizes.append(len(jobs))
        return await submit_together(connection, jobs, *args, **options)

    monkeypatch.setattr(quotas, "submit_together", count_jobs)
    return sizes


async def start_sheet(api: httpx.AsyncClient, user: str, **body: Any) -> httpx.Response:
    return await api.post(
        "/api/jobs/start", json={"type": "sheet", **body}, headers=bearer_headers(make_token(user))
    )


async def test_requests_at_the_same_time_share_statements(
    api: httpx.AsyncClient, db: Database, batch_sizes: list[int]
) -> None:
    users = [f"user-{number}" for number in range(20)]
    responses = await asyncio.gather(
        *(start_sheet(api, user) for user in users),
        *(api.post("/api/jobs", json=PLAIN, headers=SERVICE) for _ in range(20)),
    )
    assert {response.status_code for response in responses} == {202}
    assert sum(batch_sizes) >= 20
    assert len({response.json()["id"] for response in responses}) == 40
    async with db.connection() as connection:
        for user, response in zip(users, responses, strict=False):
            owner = await connection.fetchval(
                "select owner from holdfast.jobs where id = $1", response.json()["id"]
            )
            assert owner == user
        assert await connection.fetchval(COUNT_JOBS) == 41


@pytest.mark.parametrize(
    ("wrong", "field"), [({"name": "n" * 300}, "name"), ({"args": {"number": "one"}}, "args.number")]
)
async def test_one_invalid_job_fails_alone(
    api: httpx.AsyncClient, db: Database, batch_sizes: list[int], wrong: dict[str, Any], field: str
) -> None:
    schema = {"type": "object", "properties": {"number": {"type": "integer"}}}
    async with db.connection() as connection:
        types = [{"name": "page", "queue": "q", "schema": schema}]
        await task_types.register_task_types(connection, "w", types)
    jobs = [PLAIN | (wrong if number == 7 else {}) for number in range(15)]
    responses = await asyncio.gather(*(api.post("/api/jobs", json=each, headers=SERVICE) for each in jobs))
    assert [response.status_code for response in responses] == [202] * 7 + [422] + [202] * 7
    assert responses[7].json()["field"] == field
    assert batch_sizes
    async with db.connection() as connection:
        assert await connection.fetchval(COUNT_JOBS) == 15


async def test_the_limit_of_a_user_holds_and_stops_nobody_else(
    api: httpx.AsyncClient, db: Database, batch_sizes: list[int]
) -> None:
    responses = await asyncio.gather(
        *(start_sheet(api, "ann" if number % 2 else f"user-{number}") for number in range(40))
    )
    of_ann = sorted(response.status_code for response in responses[1::2])
    assert of_ann == [202] * 5 + [429] * 15
    assert {response.status_code for response in responses[::2]} == {202}
    assert batch_sizes


async def test_a_user_whose_lock_is_taken_delays_nobody(
    api: httpx.AsyncClient, db: Database, batch_sizes: list[int]
) -> None:
    async with db.transaction() as connection:
        await connection.execute("select holdfast.lock_job_count('ann')")
        locked = [asyncio.create_task(start_sheet(api, "ann")) for _ in range(3)]
        for _ in range(3):
            others = await asyncio.gather(*(start_sheet(api, f"user-{number}") for number in range(12)))
        assert not any(each.done() for each in locked)
    assert {response.status_code for response in others} == {202}
    assert batch_sizes
    assert [response.status_code for response in await asyncio.gather(*locked)] == [202] * 3


async def test_a_lost_connection_is_not_answered_by_a_second_attempt(
    api: httpx.AsyncClient, db: Database, batch_sizes: list[int]
) -> None:
    """Nobody knows whether the lost statement was committed, so sending it again might create jobs twice."""
    async with db.connection() as connection:
        await connection.execute(
            "create function public.end_session() returns trigger language plpgsql security definer as "
            "$$begin perform pg_terminate_backend(pg_backend_pid()); return new; end$$;"
            "create trigger end_session before insert on holdfast.tasks execute function public.end_session()"
        )
    try:
        responses = await asyncio.gather(
            *(api.post("/api/jobs", json=PLAIN, headers=SERVICE) for _ in range(12))
        )
    finally:
        async with db.connection() as connection:
            await connection.execute(
                "drop trigger end_session on holdfast.tasks; drop function public.end_session"
            )
    assert {response.status_code for response in responses} == {503}
    assert batch_sizes == [11]
    assert (await api.post("/api/jobs", json=PLAIN, headers=SERVICE)).status_code == 202


async def test_large_jobs_and_keys_keep_their_answers(api: httpx.AsyncClient, batch_sizes: list[int]) -> None:
    bodies = [PLAIN | {"key": "k"}, PLAIN | {"key": "k"}, PLAIN | {"args": {"number": 1, "x": "y" * 20_000}}]
    responses = await asyncio.gather(
        *(api.post("/api/jobs", json=body, headers=SERVICE) for body in bodies * 5)
    )
    assert {response.status_code for response in responses} == {200, 202}
    assert len({r.json()["id"] for r in responses[::3] + responses[1::3]}) == 1


class SlowDatabaseCalls:
    """Replaces the two statements by ones that the test lets return."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = asyncio.Event()
        self.sent: list[list[bytes]] = []
        self.error: Exception | None = None
        monkeypatch.setattr(SubmitBatcher, "_submit_alone", self.submit_alone)
        monkeypatch.setattr(quotas, "submit_together", self.submit_together)

    async def submit_alone(self, call: SubmitCall) -> SubmitResult:
        self.sent.append([call.job])
        await self.gate.wait()
        return build_result(call.job)

    async def submit_together(
        self, _: Connection, jobs: list[tuple[bytes, str | None]], *args: object, **options: object
    ) -> list[SubmitResult | None]:
        self.sent.append([each for each, _ in jobs])
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return [build_result(each) for each, _ in jobs]


def build_result(job: bytes) -> SubmitResult:
    return SubmitResult(id=UUID(int=int(job)), status="queued", created=True)


def build_call(number: int, claims: bytes = b"{}") -> SubmitCall:
    return SubmitCall(str(number).encode(), "service_role", claims, 5)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> SlowDatabaseCalls:
    return SlowDatabaseCalls(monkeypatch)


async def submit_in_background(
    batcher: SubmitBatcher, *calls: SubmitCall
) -> list[asyncio.Task[SubmitResult]]:
    tasks = [asyncio.create_task(batcher.submit(call)) for call in calls]
    await asyncio.sleep(0)
    return tasks


async def test_a_cancelled_request_that_waits_is_not_submitted(
    db: Database, calls: SlowDatabaseCalls
) -> None:
    tasks = await submit_in_background(SubmitBatcher(db), *map(build_call, range(5)))
    tasks[3].cancel()
    calls.gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(each, asyncio.CancelledError) for each in results] == [False] * 3 + [True, False]
    assert calls.sent == [[b"0"], [b"1", b"2", b"4"]]


async def test_waiting_jobs_are_sent_although_the_first_ones_do_not_return(
    db: Database, calls: SlowDatabaseCalls
) -> None:
    tasks = await submit_in_background(SubmitBatcher(db), *map(build_call, range(4)))
    await wait_until(lambda: len(calls.sent) == 2, what="a statement for the waiting jobs")
    assert calls.sent == [[b"0"], [b"1", b"2", b"3"]]
    calls.gate.set()
    assert [result.id.int for result in await asyncio.gather(*tasks)] == [0, 1, 2, 3]


async def test_callers_with_other_claims_do_not_share_a_statement(
    db: Database, calls: SlowDatabaseCalls
) -> None:
    batch = [build_call(number, b'{"a": 1}' if number % 2 else b"{}") for number in range(6)]
    tasks = await submit_in_background(SubmitBatcher(db), *batch)
    calls.gate.set()
    assert [result.id.int for result in await asyncio.gather(*tasks)] == [0, 1, 2, 3, 4, 5]
    assert sorted(calls.sent) == [[b"0"], [b"1", b"3", b"5"], [b"2", b"4"]]


@pytest.mark.parametrize("error", [DatabaseUnavailableError("gone"), InvalidError("not by the server")])
async def test_an_error_that_the_server_did_not_report_ends_all_of_a_batch(
    db: Database, calls: SlowDatabaseCalls, error: Exception
) -> None:
    calls.error = error
    tasks = await submit_in_background(SubmitBatcher(db), *map(build_call, range(4)))
    calls.gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in results[1:]] == [type(error)] * 3
    assert results[2] is not results[3]
    assert calls.sent == [[b"0"], [b"1", b"2", b"3"]]
