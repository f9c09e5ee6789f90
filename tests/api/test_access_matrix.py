"""Access of every kind of caller to every route of the OpenAPI document.

Each route is called with the ids of resources that belong to ann: by ann, by another user, without a token,
with an expired token, and by services with and without the scope that the route requires.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from api_clients import bearer_headers, create_service_key, make_token
from book_app import PUBLIC_PATHS, SERVICE_KEY

from holdfast.engine.access import SCOPE_DESCRIPTIONS
from holdfast.engine.connection import Connection, Database

ANN, BOB, SERVICE = (
    bearer_headers(make_token("ann")),
    bearer_headers(make_token("bob")),
    bearer_headers(SERVICE_KEY),
)
# A valid body for each route that does not accept the default ({}).
REQUEST_BODY_BY_OPERATION: dict[str, Any] = {
    "post_jobs_start": {"type": "book"},
    "post_jobs": {"type": "t"},
    "post_worker_claim": {"worker": "w", "queues": ["nothing"]},
    "post_keys": {"name": "x", "scopes": ["keys"]},
    "put_schedules_name": {"job": {"type": "t"}, "every_s": 60},
    "put_limits_name": {"max_running": 1},
    "post_workers_name_command": {"command": "drain"},
    "post_messages_queue": {"messages": [1]},
    "post_messages_queue_hide": {"ids": [1], "vt_s": 0},
    "post_messages_queue_archive": {"ids": [1]},
    "post_messages_queue_delete": {"ids": [1]},
    "post_webhooks": {"url": "https://example.org/hook", "events": ["job.failed"]},
    "patch_webhooks_id": {"active": True},
    "put_hooks_name": {"type": "t"},
    "post_tasks_id_snooze": {"lease": "1.1", "delay_s": 1},
}
PATH_PARAMETER_VALUES = {"name": "n", "queue": "letters", "key": "hf_nothing", "function": "get_job"}


@dataclass(frozen=True)
class ApiTarget:
    method: str
    path: str
    operation: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.operation["operationId"])

    @property
    def has_id(self) -> bool:
        return "{id}" in self.path or "{task}" in self.path

    def address(self, ids: dict[str, str]) -> str:
        return self.path.format(**{**PATH_PARAMETER_VALUES, **ids})

    def body(self) -> Any:
        if "requestBody" not in self.operation:
            return None
        return REQUEST_BODY_BY_OPERATION.get(
            self.name, {"lease": "1.1"} if self.path.startswith("/api/tasks/") else {}
        )


async def list_targets(api: httpx.AsyncClient) -> list[ApiTarget]:
    document = (await api.get("/api/openapi.json")).json()
    return [
        ApiTarget(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if path not in PUBLIC_PATHS
    ]


async def call(
    api: httpx.AsyncClient, target: ApiTarget, headers: dict[str, str], ids: dict[str, str]
) -> httpx.Response:
    body = target.body()
    more = {"json": body} if body is not None else {}
    return await api.request(target.method, target.address(ids), headers=headers, **more)


@pytest.fixture
async def resources_of_ann(api: httpx.AsyncClient, conn: Connection) -> dict[str, dict[str, str]]:
    """Create a resource of ann for each kind of path: an ended job, one of its tasks, a batch."""
    await conn.execute("select pgmq.create('letters')")
    created = await api.post("/api/jobs/start", json={"type": "book"}, headers=ANN)
    job = created.json()["id"]
    await api.delete(f"/api/jobs/{job}", headers=ANN)
    batch = (await api.post("/api/batches", json={}, headers=ANN)).json()["id"]
    task = (await api.get(f"/api/jobs/{job}", headers=ANN)).json()["tasks"][0]["id"]
    return {"job": {"id": job}, "batch": {"id": batch}, "task": {"id": task}}


def get_path_ids(target: ApiTarget, resources_of_ann: dict[str, dict[str, str]]) -> dict[str, str]:
    for noun in ("batch", "task"):
        if f"/api/{noun}" in target.path:
            return resources_of_ann[noun]
    return resources_of_ann["job"]


async def test_requests_without_a_valid_credential_get_401_everywhere(
    api: httpx.AsyncClient, resources_of_ann: dict[str, dict[str, str]]
) -> None:
    expired = bearer_headers(make_token("ann", exp=int(time.time()) - 60))
    violations: dict[Any, Any] = {}
    for target in await list_targets(api):
        for headers in ({}, expired, bearer_headers("hf_aaaaaaaa_" + "x" * 43), bearer_headers("x")):
            response = await call(api, target, headers, get_path_ids(target, resources_of_ann))
            # An inbound webhook does not need a token: it checks a signature.
            if response.status_code != 401 and not target.path.startswith("/hooks/"):
                violations[target.method, target.path] = response.status_code
    assert violations == {}


async def test_resources_of_another_user_look_like_missing_resources(
    api: httpx.AsyncClient, resources_of_ann: dict[str, dict[str, str]], conn: Connection
) -> None:
    before = await conn.fetchval("select count(*) from holdfast.jobs where status = 'cancelled'")
    violations: dict[Any, Any] = {}
    for target in await list_targets(api):
        if not target.has_id or target.operation.get("x-access") == "service":
            continue
        foreign = await call(api, target, BOB, get_path_ids(target, resources_of_ann))
        missing = await call(api, target, BOB, {"id": str(uuid4())})
        if foreign.status_code != missing.status_code or _mask_requested_ids(
            foreign, get_path_ids(target, resources_of_ann)
        ) != _mask_requested_ids(missing):
            violations[target.method, target.path] = (foreign.text, missing.text)
        if foreign.status_code not in (404, 200) or (foreign.status_code == 200 and foreign.json() != []):
            violations[target.method, target.path] = (foreign.status_code, foreign.text)
    assert violations == {}
    assert await conn.fetchval("select count(*) from holdfast.jobs where status = 'cancelled'") == before


def _mask_requested_ids(response: httpx.Response, ids: dict[str, str] | None = None) -> str:
    """Return the response without the requested id, which the caller knows already."""
    text = response.text
    for known in (ids or {}).values():
        text = text.replace(known, "ID")
    if ids is None:
        requested_id = next((part for part in str(response.request.url).split("/") if _is_id(part)), "-")
        text = text.replace(requested_id, "ID")
    return text


def _is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


async def test_owners_have_access_and_users_cannot_call_service_endpoints(
    api: httpx.AsyncClient, resources_of_ann: dict[str, dict[str, str]]
) -> None:
    violations: dict[Any, Any] = {}
    for target in sorted(await list_targets(api), key=lambda target: target.method == "delete"):
        if target.path.endswith("/events"):
            continue  # streams are tested in test_event_streams.py
        response = await call(api, target, ANN, get_path_ids(target, resources_of_ann))
        service_only = target.operation.get("x-access") == "service"
        rejected = response.status_code in (401, 403)
        # The database decides about rpc and raw submits: users may not call or submit everything.
        if rejected != service_only and target.name not in ("post_jobs", "post_hooks_name"):
            violations[target.method, target.path] = (response.status_code, response.text)
        if response.status_code >= 500:
            violations[target.method, target.path] = (response.status_code, response.text)
    assert violations == {}


async def test_services_can_only_use_their_scopes(
    api: httpx.AsyncClient, resources_of_ann: dict[str, dict[str, str]], db: Database
) -> None:
    every = await list_targets(api)
    keys = {scope: bearer_headers(await create_service_key(db, scope)) for scope in SCOPE_DESCRIPTIONS}
    violations: dict[Any, Any] = {}
    for target in sorted(every, key=lambda target: target.method == "delete"):
        if target.path.endswith("/events"):
            continue
        scope = target.operation.get("x-scope")
        assert scope in SCOPE_DESCRIPTIONS, target
        for other, headers in keys.items():
            response = await call(api, target, headers, get_path_ids(target, resources_of_ann))
            if (response.status_code == 403) != (other != scope):
                violations[target.method, target.path, other] = (response.status_code, response.text)
            assert response.status_code < 500, (target, response.text)
    assert violations == {}
    assert SERVICE
