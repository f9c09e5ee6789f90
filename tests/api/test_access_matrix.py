"""Access of every kind of caller to every route of the OpenAPI document.

Each route is called with the ids of resources that belong to ann: by ann, by another user, without a token,
with an expired token, and by services with and without the scope that the route requires.
"""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

import httpx
import pytest
from api_clients import bearer_headers, create_service_key, make_token
from api_targets import ApiTarget, call_target, list_targets, mask_requested_ids
from book_app import SERVICE_KEY

from holdfast.engine.access import SCOPE_DESCRIPTIONS
from holdfast.engine.connection import Connection, Database

ANN, BOB, SERVICE = (
    bearer_headers(make_token("ann")),
    bearer_headers(make_token("bob")),
    bearer_headers(SERVICE_KEY),
)


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
            response = await call_target(api, target, headers, get_path_ids(target, resources_of_ann))
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
        foreign = await call_target(api, target, BOB, get_path_ids(target, resources_of_ann))
        missing = await call_target(api, target, BOB, {"id": str(uuid4())})
        if foreign.status_code != missing.status_code or mask_requested_ids(
            foreign, get_path_ids(target, resources_of_ann)
        ) != mask_requested_ids(missing):
            violations[target.method, target.path] = (foreign.text, missing.text)
        if foreign.status_code not in (404, 200) or (foreign.status_code == 200 and foreign.json() != []):
            violations[target.method, target.path] = (foreign.status_code, foreign.text)
    assert violations == {}
    assert await conn.fetchval("select count(*) from holdfast.jobs where status = 'cancelled'") == before


async def test_owners_have_access_and_users_cannot_call_service_endpoints(
    api: httpx.AsyncClient, resources_of_ann: dict[str, dict[str, str]]
) -> None:
    violations: dict[Any, Any] = {}
    for target in sorted(await list_targets(api), key=lambda target: target.method == "delete"):
        if target.path.endswith("/events"):
            continue  # streams are tested in test_event_streams.py
        response = await call_target(api, target, ANN, get_path_ids(target, resources_of_ann))
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
        if target.path == "/api/session":  # for users only
            refused = [await call_target(api, target, headers, {}) for headers in keys.values()]
            assert {response.status_code for response in refused} == {403}
            continue
        assert scope in SCOPE_DESCRIPTIONS, target
        if scope == "rpc":
            continue  # each function needs another scope besides; test_rpc_services.py calls them all
        for other, headers in keys.items():
            response = await call_target(api, target, headers, get_path_ids(target, resources_of_ann))
            if (response.status_code == 403) != (other != scope):
                violations[target.method, target.path, other] = (response.status_code, response.text)
            assert response.status_code < 500, (target, response.text)
    assert violations == {}
    assert SERVICE
