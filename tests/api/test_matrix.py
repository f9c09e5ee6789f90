"""Every route against every kind of caller, generated from the description, so that no route can be
forgotten.

Each route is called with the ids of things that belong to ann, by ann, by another user, by nobody, with an
expired token, and by services with and without the scope that the route asks for.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from books import KEY, OPEN
from callers import bearer, service_key, token

from holdfast.engine.access import SCOPES
from holdfast.engine.connection import Connection, Database

ANN, BOB, SERVICE = bearer(token("ann")), bearer(token("bob")), bearer(KEY)
# A body that each route takes, where the default ({}) is not one.
BODIES: dict[str, Any] = {
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
NAMES = {"name": "n", "queue": "letters", "key": "hf_nothing", "function": "get_job"}


@dataclass(frozen=True)
class Target:
    method: str
    path: str
    said: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.said["operationId"])

    @property
    def has_id(self) -> bool:
        return "{id}" in self.path or "{task}" in self.path

    def address(self, ids: dict[str, str]) -> str:
        return self.path.format(**{**NAMES, **ids})

    def body(self) -> Any:
        if "requestBody" not in self.said:
            return None
        return BODIES.get(self.name, {"lease": "1.1"} if self.path.startswith("/api/tasks/") else {})


async def targets(api: httpx.AsyncClient) -> list[Target]:
    document = (await api.get("/api/openapi.json")).json()
    return [
        Target(method, path, said)
        for path, methods in document["paths"].items()
        for method, said in methods.items()
        if path not in OPEN
    ]


async def call(
    api: httpx.AsyncClient, target: Target, headers: dict[str, str], ids: dict[str, str]
) -> httpx.Response:
    given = target.body()
    more = {"json": given} if given is not None else {}
    return await api.request(target.method, target.address(ids), headers=headers, **more)


@pytest.fixture
async def owned(api: httpx.AsyncClient, conn: Connection) -> dict[str, dict[str, str]]:
    """Something of ann's for each kind of path: a job that has ended, one of its tasks, a batch."""
    await conn.execute("select pgmq.create('letters')")
    made = await api.post("/api/jobs/start", json={"type": "book"}, headers=ANN)
    job = made.json()["id"]
    await api.delete(f"/api/jobs/{job}", headers=ANN)
    batch = (await api.post("/api/batches", json={}, headers=ANN)).json()["id"]
    task = (await api.get(f"/api/jobs/{job}", headers=ANN)).json()["tasks"][0]["id"]
    return {"job": {"id": job}, "batch": {"id": batch}, "task": {"id": task}}


def of(target: Target, owned: dict[str, dict[str, str]]) -> dict[str, str]:
    for noun in ("batch", "task"):
        if f"/api/{noun}" in target.path:
            return owned[noun]
    return owned["job"]


async def test_nobody_and_the_expired_get_401_everywhere(
    api: httpx.AsyncClient, owned: dict[str, dict[str, str]]
) -> None:
    expired = bearer(token("ann", exp=int(time.time()) - 60))
    wrong: dict[Any, Any] = {}
    for target in await targets(api):
        for headers in ({}, expired, bearer("hf_aaaaaaaa_" + "x" * 43), bearer("x")):
            answer = await call(api, target, headers, of(target, owned))
            # An inbound hook answers with 404 for what is not there before it looks at anything else.
            if answer.status_code != 401 and not target.path.startswith("/hooks/"):
                wrong[target.method, target.path] = answer.status_code
    assert wrong == {}


async def test_another_user_cannot_tell_what_is_ann_s_from_what_is_not_there(
    api: httpx.AsyncClient, owned: dict[str, dict[str, str]], conn: Connection
) -> None:
    before = await conn.fetchval("select count(*) from holdfast.jobs where status = 'cancelled'")
    wrong: dict[Any, Any] = {}
    for target in await targets(api):
        if not target.has_id or target.said.get("x-access") == "service":
            continue
        theirs = await call(api, target, BOB, of(target, owned))
        missing = await call(api, target, BOB, {"id": str(uuid4())})
        if theirs.status_code != missing.status_code or _same(theirs, of(target, owned)) != _same(missing):
            wrong[target.method, target.path] = (theirs.text, missing.text)
        if theirs.status_code not in (404, 200) or (theirs.status_code == 200 and theirs.json() != []):
            wrong[target.method, target.path] = (theirs.status_code, theirs.text)
    assert wrong == {}
    assert await conn.fetchval("select count(*) from holdfast.jobs where status = 'cancelled'") == before


def _same(answer: httpx.Response, ids: dict[str, str] | None = None) -> str:
    """The answer without the id that was asked for, which the caller knew already."""
    text = answer.text
    for known in (ids or {}).values():
        text = text.replace(known, "ID")
    if ids is None:
        asked = next((part for part in str(answer.request.url).split("/") if _is_id(part)), "-")
        text = text.replace(asked, "ID")
    return text


def _is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


async def test_the_owner_is_let_in_and_users_stay_out_of_what_is_for_services(
    api: httpx.AsyncClient, owned: dict[str, dict[str, str]]
) -> None:
    wrong: dict[Any, Any] = {}
    for target in sorted(await targets(api), key=lambda target: target.method == "delete"):
        if target.path.endswith("/events"):
            continue  # streams are read in test_events.py
        answer = await call(api, target, ANN, of(target, owned))
        for_services = target.said.get("x-access") == "service"
        refused = answer.status_code in (401, 403)
        # rpc and raw submits are decided by the database: users may not call or submit everything.
        if refused != for_services and target.name not in ("post_jobs", "post_hooks_name"):
            wrong[target.method, target.path] = (answer.status_code, answer.text)
        if answer.status_code >= 500:
            wrong[target.method, target.path] = (answer.status_code, answer.text)
    assert wrong == {}


async def test_services_are_held_to_their_scopes(
    api: httpx.AsyncClient, owned: dict[str, dict[str, str]], db: Database
) -> None:
    every = await targets(api)
    keys = {scope: bearer(await service_key(db, scope)) for scope in SCOPES}
    wrong: dict[Any, Any] = {}
    for target in sorted(every, key=lambda target: target.method == "delete"):
        if target.path.endswith("/events"):
            continue
        scope = target.said.get("x-scope")
        assert scope in SCOPES, target
        for other, headers in keys.items():
            answer = await call(api, target, headers, of(target, owned))
            if (answer.status_code == 403) != (other != scope):
                wrong[target.method, target.path, other] = (answer.status_code, answer.text)
            assert answer.status_code < 500, (target, answer.text)
    assert wrong == {}
    assert SERVICE
