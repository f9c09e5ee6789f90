"""What users reach by RPC: the same answers as over HTTP, the same limits, and nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import httpx
import msgspec
import pytest
from api_clients import bearer_headers, make_token
from book_app import SERVICE_KEY, book_job
from manual_worker import ManualWorker

from holdfast.engine import artifacts
from holdfast.engine.connection import Connection, Database
from holdfast.engine.leases import LeasedTask
from holdfast.engine.rpc_functions import RPC_FUNCTIONS
from holdfast.server import Caller, create_app, redact_error, redact_job
from holdfast.server.api.job_views import PUBLIC_ERROR_TYPES, TIMEOUT_ERROR_TYPES, redact_explanation
from holdfast.settings import Settings

SERVICE = bearer_headers(SERVICE_KEY)
ANN = bearer_headers(make_token("ann"))
PROFILE = {"content-profile": "holdfast", "accept-profile": "holdfast"}
# Texts that only operators may read. Each is stored in a place of its own.
SECRETS = ("secret message", "secret.py", "secret-host", "secret argument", "secret log", "secret callback")
SERVER_PATH_FIELDS = {"url"}  # HTTP adds links to its own routes
# RPC returns these beside the fields of HTTP, which says the same by its status codes (404, 410).
FILE_FIELDS_OF_RPC = {"owner", "status", "deletion_reason"}

# Options that decide how a job runs. An unknown option is refused too.
SERVICE_OPTIONS: dict[str, Any] = {
    "queue": "other", "priority": 100, "lease_s": 86400, "attempts": 1_000_000, "timeout_s": 86400,
    "base_s": 0, "cap_s": 0, "jitter": 0, "crashes": 1000, "limit_key": "k", "owner": "bob", "unknown": 1,
}  # fmt: skip

RpcCall = Callable[..., Awaitable[httpx.Response]]


@dataclass(frozen=True)
class FailedJob:
    """A graph of ann: one task failed with an internal error, after another was completed with a file."""

    id: str
    failed_task: str
    batch: str
    file: str


@pytest.fixture
def call(api: httpx.AsyncClient) -> RpcCall:
    """Call a function as the user ann and return the response."""

    async def call_as_ann(name: str, **arguments: Any) -> httpx.Response:
        return await api.post(f"/rest/v1/rpc/{name}", json=arguments, headers={**ANN, **PROFILE})

    return call_as_ann


@pytest.fixture
async def failed_job(api: httpx.AsyncClient, conn: Connection) -> FailedJob:
    batch = await api.post(
        "/api/batches",
        json={"owner": "ann", "callback": {"type": "t", "args": {"text": "secret callback"}}},
        headers=SERVICE,
    )
    tasks = [
        {"name": "first", "type": "t", "args": {"text": "secret argument"}},
        {"name": "second", "type": "t", "args": {"text": "secret argument"}, "after": ["first"]},
    ]
    job = {"type": "g", "queue": "q", "owner": "ann", "params": {"n": 1}, "tasks": tasks}
    body = {**job, "batch": batch.json()["id"]}
    submitted = (await api.post("/api/jobs", json=body, headers=SERVICE)).json()
    worker = ManualWorker(conn, "secret-host")
    task = await worker.claim_one_task()
    file_id = await _store_file(conn, task)
    await worker.finish_task(task, "succeed", {"pages": 1})
    task = await worker.claim_one_task()
    lines = [{"seq": 1, "at": "2026-01-01T00:00:00Z", "level": "error", "message": "secret log"}]
    entry = {"id": str(task.id), "attempt": task.attempt, "nonce": task.nonce, "lines": lines}
    await conn.execute("select holdfast.write_logs($1)", msgspec.json.encode([entry]).decode())
    error = {"type": "OperationalError", "message": "secret message", "traceback": "File secret.py"}
    await worker.finish_task(task, "reject", error)
    return FailedJob(submitted["id"], submitted["tasks"]["second"], batch.json()["id"], file_id)


async def _store_file(conn: Connection, task: LeasedTask) -> str:
    file = {"name": "a.txt", "kind": "text", "content_type": "text/plain"}
    staged = await artifacts.stage_artifact(conn, task, file)
    await conn.execute(
        "select holdfast.record_artifact_upload($1, $2, $3, 3, $4)",
        *(staged.id, task.attempt, task.nonce, "0" * 64),
    )
    return str(staged.id)


def drop_fields(value: Any, names: set[str]) -> Any:
    """Return the value without these fields, and with times in one format."""
    if isinstance(value, dict):
        return {name: drop_fields(item, names) for name, item in value.items() if name not in names}
    if isinstance(value, str) and value[:2] == "20" and "T" in value:
        return datetime.fromisoformat(value)
    return [drop_fields(item, names) for item in value] if isinstance(value, list) else value


async def test_every_read_by_rpc_equals_the_answer_of_http(
    api: httpx.AsyncClient, call: RpcCall, failed_job: FailedJob
) -> None:
    async def get(path: str) -> Any:
        response = await api.get(path, headers=ANN)
        assert response.status_code == 200, response.text
        return response.json()

    job, task, batch = failed_job.id, failed_job.failed_task, failed_job.batch
    files = (await get(f"/api/jobs/{job}/artifacts"))["artifacts"]
    page = await get("/api/jobs")
    expected: dict[str, tuple[dict[str, Any], Any]] = {
        # Over HTTP a job has its files, in SQL they are a function of their own.
        "get_job": ({"p_id": job}, drop_fields(await get(f"/api/jobs/{job}"), {"artifacts"})),
        "shard_of": ({"p_id": job}, 0),
        "list_jobs": ({}, page["jobs"]),
        "list_jobs_page": ({}, {"rows": page["jobs"], "next": page["next"], "truncated": False}),
        "explain_task": ({"p_id": task}, await get(f"/api/tasks/{task}/explain")),
        "list_task_attempts": ({"p_task_id": task}, await get(f"/api/tasks/{task}/attempts")),
        "get_batch": ({"p_id": batch}, await get(f"/api/batches/{batch}")),
        "list_artifacts": ({"p_where": {"job": job}}, files),
        "get_artifact": ({"p_id": failed_job.file}, files[0]),
        "get_owner_usage": ({}, await get("/api/usage")),
        "list_webhooks": ({}, await get("/api/webhooks")),
        # There are no routes for these. Nobody has called a provider; test_usage.py has those who have.
        "get_provider_cost": ({"p_owner": "bob"}, 0),
        "list_provider_usage": ({"p_owner": "bob"}, []),
        "list_job_provider_usage": ({"p_job_id": job}, []),
    }
    # Event streams have a format of their own. The test below looks for secrets in their source.
    without_equivalent = {"list_job_events"}
    reads = {name for name, rule in RPC_FUNCTIONS.items() if rule.users and rule.is_read}
    assert reads == expected.keys() | without_equivalent
    for name, (arguments, answer) in expected.items():
        response = await call(name, **arguments)
        assert response.status_code == 200, (name, response.text)
        got = drop_fields(response.json(), FILE_FIELDS_OF_RPC if "artifact" in name else set())
        assert got == drop_fields(answer, SERVER_PATH_FIELDS), name


async def test_no_function_shows_users_what_http_hides(call: RpcCall, failed_job: FailedJob) -> None:
    """Call every function with the ids of the job, whether it is allowed or not."""
    ids = {"job": failed_job.id, "task": failed_job.failed_task, "batch": failed_job.batch}
    candidates: dict[str, Any] = {
        "get_job": {"p_id": ids["job"]},
        "list_jobs": {},
        "list_jobs_page": {},
        "list_job_events": {"p_job_id": ids["job"]},
        "explain_task": {"p_id": ids["task"]},
        "list_task_attempts": {"p_task_id": ids["task"]},
        "list_job_attempts": {"p_id": ids["job"]},
        "get_job_detail": {"p_id": ids["job"]},
        "get_task_payload": {"p_id": ids["task"]},
        "build_job_resubmission": {"p_id": ids["job"]},
        "search_jobs": {},
        "read_logs": {"p_job": ids["job"]},
        "get_batch": {"p_id": ids["batch"]},
        "list_artifacts": {"p_where": {"job": ids["job"]}},
        "get_artifact": {"p_id": failed_job.file},
        "list_workers": {},
    }
    for name, arguments in candidates.items():
        response = await call(name, **arguments)
        assert response.status_code in (200, 403, 404), (name, response.text)
        for secret in SECRETS:
            assert secret not in response.text, name
        if "artifact" in name:
            assert '"key"' not in response.text, name
        if response.status_code == 200:
            assert RPC_FUNCTIONS[name].users, name


async def test_sql_and_python_hide_the_same(conn: Connection) -> None:
    """Applications that read jobs as a service hide with Python what the functions for users hide in SQL."""
    types = [*PUBLIC_ERROR_TYPES, *TIMEOUT_ERROR_TYPES, "KeyError", "", None]
    errors: list[Any] = [None, {}, {"type": "Reject"}, {"type": "Reject", "message": None}]
    for error_type in types:
        error = {"type": error_type, "message": "m", "traceback": "File x"}
        errors += [error, {**error, "task": "a"}, {**error, "task": ""}]
    caller = Caller("user", "ann")
    reasons: list[Any] = [
        {"reason": "running", "worker": "w"}, {"reason": "limit", "held_by": ["x"]},
        {"reason": "paused", "by": "x", "paused_reason": "r"},
        {"reason": "deaths", "message": "m", "crashes": 1},
    ]  # fmt: skip
    for error in errors:
        job = {"id": "1", "error": error, "tasks": [{"id": "2", "error": error}]}
        explanation = {"status": "failed", "reasons": [*reasons, {"reason": "ended", "error": error}]}
        row = await conn.fetchrow(
            "select holdfast.redact_error($1), holdfast.redact_job($2), holdfast.redact_explanation($3)",
            *(
                None if value is None else msgspec.json.encode(value).decode()
                for value in (error, job, explanation)
            ),
        )
        assert row is not None
        got = [None if value is None else msgspec.json.decode(value) for value in row]
        assert got == [redact_error(error), redact_job(job, caller), redact_explanation(explanation, caller)]


@pytest.mark.parametrize("form", ["http", "start", "submit", "submit_many", "graph"])
async def test_users_may_not_choose_how_their_job_runs(
    api: httpx.AsyncClient, conn: Connection, call: RpcCall, form: str
) -> None:
    async def submit(job: dict[str, Any]) -> httpx.Response:
        if form in ("http", "start"):
            path = "/api/jobs" if form == "http" else "/api/jobs/start"
            return await api.post(path, json=job, headers=ANN)
        if form == "submit_many":
            return await call("submit_many", p_jobs=[{"type": "t"}, job])
        if form == "graph":
            return await call("submit", p_job={"type": "t", "tasks": [{**job, "name": "a"}]})
        return await call("submit", p_job=job)

    await conn.execute("""insert into holdfast.options values ('public_types', '["t"]')""")
    for field, value in SERVICE_OPTIONS.items():
        response = await submit({"type": "t", field: value})
        assert response.status_code in (403, 422), (field, response.text)
        assert field in response.text
    assert await conn.fetchval("select count(*) from holdfast.tasks") == 0


async def test_users_may_set_the_documented_options(
    api: httpx.AsyncClient, conn: Connection, call: RpcCall
) -> None:
    await conn.execute("""insert into holdfast.options values ('public_types', '["t"]')""")
    await conn.execute("""select holdfast.register_task_types('w', '[{"name": "t", "queue": "paper"}]')""")
    batch = (await call("open_batch", p_name="mine")).json()
    job = {
        "type": "t", "args": {"n": 1}, "key": "k", "unique_key": "u", "labels": {"a": "b"}, "delay_s": 5,
        "expires_at": "2100-01-01T00:00:00Z", "batch": batch, "owner": "ann",
    }  # fmt: skip
    response = await call("submit", p_job=job)
    assert response.status_code == 200, response.text
    again = await api.post("/api/jobs", json={**job, "key": "k2", "unique_key": "u2"}, headers=ANN)
    assert again.status_code == 202, again.text
    # A user's job runs in the queue that the workers registered for its type.
    queues = await conn.fetch("select distinct queue from holdfast.all_tasks")
    assert [row["queue"] for row in queues] == ["paper"]


async def test_every_way_to_submit_honours_the_limit_of_unfinished_jobs(
    db: Database, api_settings: Settings, conn: Connection
) -> None:
    await conn.execute("""insert into holdfast.options values ('public_types', '["t"]')""")
    app = create_app(replace(api_settings, user_jobs=2), database=db, job_types=[book_job])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api") as api:

        async def rpc(name: str, **arguments: Any) -> httpx.Response:
            return await api.post(f"/rest/v1/rpc/{name}", json=arguments, headers={**ANN, **PROFILE})

        ended = (await rpc("submit", p_job={"type": "t"})).json()["id"]
        assert (await rpc("cancel_job", p_id=ended)).json()["cancelled"]
        assert (await rpc("submit_many", p_jobs=[{"type": "t"}] * 2)).status_code == 200
        refused = [
            await rpc("submit", p_job={"type": "t"}),
            await rpc("submit_many", p_jobs=[{"type": "t"}]),
            await rpc("submit", p_job={"type": "t", "tasks": [{"type": "t", "name": n} for n in "ab"]}),
            await rpc("submit_standalone", p_job={"type": "t"}),
            await rpc("submit_within_job_limit", p_job={"type": "t"}, p_owner="ann", p_max_unfinished=99),
            await rpc("retry_job", p_id=ended),
            await api.post("/api/jobs", json={"type": "t"}, headers=ANN),
            await api.post("/api/jobs/start", json={"type": "t"}, headers=ANN),
            await api.post("/api/jobs/start", json={"type": "book"}, headers=ANN),
            await api.post(f"/api/jobs/{ended}/retry", headers=ANN),
        ]
        statuses = [response.status_code for response in refused]
        assert statuses == [429, 429, 429, 403, 404, 429, 429, 429, 429, 429]
        assert await conn.fetchval("select count(*) from holdfast.tasks where owner = 'ann'") == 2
    await app.state.holdfast.close()


async def test_a_graph_of_a_user_has_a_bounded_number_of_tasks(conn: Connection, call: RpcCall) -> None:
    await conn.execute("""insert into holdfast.options values ('public_types', '["t"]')""")
    tasks = [{"type": "t", "name": str(number)} for number in range(101)]
    refused = await call("submit", p_job={"type": "t", "tasks": tasks})
    assert (refused.status_code, refused.json()["code"]) == (403, "HF005"), refused.text
    assert (await call("submit", p_job={"type": "t", "tasks": tasks[:100]})).status_code == 200


async def test_users_may_not_set_the_callback_of_a_batch(conn: Connection, call: RpcCall) -> None:
    await conn.execute("""insert into holdfast.options values ('public_types', '["t"]')""")
    for callback in ({}, {"type": "t"}, {"type": "t", "priority": 100}):
        refused = await call("open_batch", p_callback=callback)
        assert (refused.status_code, refused.json()["code"]) == (403, "HF005"), refused.text
    refused = await call("open_batch", p_owner="bob")
    assert refused.status_code == 403
