"""PostgREST-style calls: over plain HTTP, with the Python postgrest client and with supabase-js."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from api_clients import bearer_headers, create_service_key, make_token, serve_app
from book_app import SERVICE_KEY
from node_programs import run_supabase_js
from postgrest import APIError, AsyncPostgrestClient
from starlette.applications import Starlette

from holdfast.engine.connection import Connection, Database

SERVICE = bearer_headers(SERVICE_KEY)
PGMQ_PROFILE = {"content-profile": "pgmq_public"}
HOLDFAST_PROFILE = {"content-profile": "holdfast"}
NEW_KEY_ARGUMENTS = {"p_name": "", "p_prefix": "", "p_hash": "", "p_scopes": []}


@pytest.fixture
async def mail_queue(conn: Connection) -> str:
    await conn.execute("select pgmq.create('letters')")
    return "letters"


@pytest.fixture
async def base(app: Starlette) -> AsyncGenerator[str]:
    async with serve_app(app) as address:
        yield address


async def test_functions_return_scalars_rows_and_nothing(api: httpx.AsyncClient, mail_queue: str) -> None:
    async def call(name: str, **arguments: Any) -> httpx.Response:
        return await api.post(f"/rest/v1/rpc/{name}", json=arguments, headers={**SERVICE, **PGMQ_PROFILE})

    assert (await call("send", queue_name=mail_queue, message={"n": 1})).json() == [1]
    assert (await call("send_batch", queue_name=mail_queue, messages=[{"n": 2}, {"n": 3}])).json() == [2, 3]
    [read] = (await call("read", queue_name=mail_queue, sleep_seconds=30, n=1)).json()
    assert (read["msg_id"], read["message"], read["read_ct"]) == (1, {"n": 1}, 1)
    assert (await call("archive", queue_name=mail_queue, message_id=1)).json() is True
    assert (await call("delete", queue_name=mail_queue, message_id=1)).json() is False
    assert (await call("pop", queue_name=mail_queue)).json()[0]["msg_id"] == 2
    created = await api.post(
        "/rest/v1/rpc/submit", json={"p_job": {"type": "t"}}, headers={**SERVICE, **HOLDFAST_PROFILE}
    )
    job = created.json()["id"]
    shown = await api.get(
        f"/rest/v1/rpc/get_job?p_id={job}", headers={**SERVICE, "accept-profile": "holdfast"}
    )
    assert shown.json()["id"] == job
    paused = await api.post(
        "/rest/v1/rpc/pause_queue", json={"p_queue": "q"}, headers={**SERVICE, **HOLDFAST_PROFILE}
    )
    assert (paused.status_code, paused.content) == (204, b"")
    one = {**SERVICE, **HOLDFAST_PROFILE, "accept": "application/vnd.pgrst.object+json"}
    listed = await api.post("/rest/v1/rpc/list_jobs", json={"p_limit": 1}, headers=one)
    assert listed.json()["id"] == job
    none = await api.post("/rest/v1/rpc/list_jobs", json={"p_filter": {"type": "x"}}, headers=one)
    assert (none.status_code, none.json()["code"]) == (406, "PGRST116")


async def test_users_call_functions_with_their_own_rights(api: httpx.AsyncClient, conn: Connection) -> None:
    await conn.execute("""insert into holdfast.options values ('public_types', '["t"]')""")
    headers = {**bearer_headers(make_token("ann")), **HOLDFAST_PROFILE}
    created = await api.post("/rest/v1/rpc/submit", json={"p_job": {"type": "t"}}, headers=headers)
    job = created.json()["id"]
    mine = await api.post("/rest/v1/rpc/get_job", json={"p_id": job}, headers=headers)
    assert mine.json()["owner"] == "ann"
    theirs = await api.post(
        "/rest/v1/rpc/get_job",
        json={"p_id": job},
        headers={**bearer_headers(make_token("bob")), **HOLDFAST_PROFILE},
    )
    assert theirs.json() is None
    rejected = await api.post("/rest/v1/rpc/claim_tasks", json={"p_worker": "w"}, headers=headers)
    assert (rejected.status_code, rejected.json()["code"]) == (403, "42501")
    other = await api.post(
        "/rest/v1/rpc/submit", json={"p_job": {"type": "t", "owner": "bob"}}, headers=headers
    )
    assert (other.status_code, other.json()["code"]) == (403, "HF005")


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "code"),
    [
        ("send", {"queue_name": "nothing", "message": {}}, PGMQ_PROFILE, 404, "42P01"),
        ("send", {"queue": "nothing"}, PGMQ_PROFILE, 404, "PGRST202"),
        ("no_such", {}, PGMQ_PROFILE, 404, "PGRST202"),
        ("send", {}, {"content-profile": "pg_catalog"}, 406, "PGRST106"),
        ("send", {}, {"content-profile": "public"}, 406, "PGRST106"),
        ("get_job", {"p_id": "x"}, HOLDFAST_PROFILE, 400, "22P02"),
        ("submit", {"p_job": []}, HOLDFAST_PROFILE, 422, "HF004"),
        ("create_service_key", NEW_KEY_ARGUMENTS, HOLDFAST_PROFILE, 404, "PGRST202"),
        ("list_service_keys", {}, HOLDFAST_PROFILE, 404, "PGRST202"),
        ("record", {"p_actor": "x", "p_action": "x"}, HOLDFAST_PROFILE, 404, "PGRST202"),
        ('x"; drop table holdfast.jobs; --', {}, HOLDFAST_PROFILE, 404, "PGRST202"),
        ("submit", {'p_job" jsonb); drop table x; --': 1}, HOLDFAST_PROFILE, 404, "PGRST202"),
    ],
)  # fmt: skip
async def test_errors_have_the_format_of_postgrest(
    api: httpx.AsyncClient, path: str, body: Any, headers: dict[str, str], status: int, code: str
) -> None:
    response = await api.post(f"/rest/v1/rpc/{path}", json=body, headers={**SERVICE, **headers})
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    assert set(response.json()) == {"code", "message", "details", "hint"}


@pytest.mark.parametrize(
    "name", ["x" * 63, "x" * 64, "x" * 200, "x" * 201, "\N{OGHAM LETTER BEITH}" * 60, "a\x1ab"]
)
async def test_impossible_function_names_get_404(api: httpx.AsyncClient, name: str) -> None:
    """PostgreSQL rejects identifiers that are too long before it searches for them."""
    response = await api.post(f"/rest/v1/rpc/{quote(name)}", json={}, headers={**SERVICE, **HOLDFAST_PROFILE})
    assert (response.status_code, response.json()["code"]) == (404, "PGRST202")


async def test_anonymous_callers_and_keys_without_the_scope_are_rejected(
    api: httpx.AsyncClient, db: Database
) -> None:
    nobody = await api.post("/rest/v1/rpc/send", json={}, headers=PGMQ_PROFILE)
    assert (nobody.status_code, nobody.json()["code"]) == (401, "PGRST301")
    narrow = bearer_headers(await create_service_key(db, "jobs"))
    assert (
        await api.post("/rest/v1/rpc/send", json={}, headers={**narrow, **PGMQ_PROFILE})
    ).status_code == 403
    changed = await api.get(
        '/rest/v1/rpc/submit?p_job={"type":"t"}', headers={**SERVICE, "accept-profile": "holdfast"}
    )
    assert (changed.status_code, changed.json()["code"]) == (405, "25006")


async def test_the_python_postgrest_client_sends_reads_and_archives(base: str, mail_queue: str) -> None:
    headers = {"apikey": SERVICE_KEY, "Authorization": f"Bearer {SERVICE_KEY}"}
    async with AsyncPostgrestClient(f"{base}/rest/v1", schema="pgmq_public", headers=headers) as client:

        async def call(name: str, **arguments: Any) -> Any:
            return (await client.rpc(name, arguments).execute()).data

        assert await call("send", queue_name=mail_queue, message={"n": 1}, sleep_seconds=0) == [1]
        [read] = await call("read", queue_name=mail_queue, sleep_seconds=30, n=5)
        assert read["message"] == {"n": 1}
        assert await call("archive", queue_name=mail_queue, message_id=1) is True
        assert await call("read", queue_name=mail_queue, sleep_seconds=30, n=5) == []
        with pytest.raises(APIError) as caught:
            await call("send", queue_name="nothing", message={})
        assert caught.value.code == "42P01"


SUPABASE_SCRIPT = """
const { createClient } = require('@supabase/supabase-js')
const [url, key, queue] = process.argv.slice(2)
async function main() {
  const client = createClient(url, key, { db: { schema: 'pgmq_public' } })
  const call = async (name, args) => {
    const { data, error } = await client.schema('pgmq_public').rpc(name, args)
    if (error) throw new Error(JSON.stringify(error))
    return data
  }
  const out = {}
  out.sent = await call('send', { queue_name: queue, message: { n: 1 }, sleep_seconds: 0 })
  out.read = await call('read', { queue_name: queue, sleep_seconds: 30, n: 5 })
  out.archived = await call('archive', { queue_name: queue, message_id: out.sent[0] })
  out.rest = await call('read', { queue_name: queue, sleep_seconds: 30, n: 5 })
  const payload = { bookmarkId: 456, url: 'https://example.com', userId: 'u', favIcon: null, isImage: false }
  const bookmark = await call('send', { queue_name: queue, message: payload })
  out.bookmarks = await call('read', { queue_name: queue, n: 10 })  // without sleep_seconds
  out.done = await call('archive', { queue_name: queue, message_id: bookmark[0] })
  const absent = { queue_name: 'nothing', message: {} }
  out.wrong = (await client.schema('pgmq_public').rpc('send', absent)).error.code
  const jobs = client.schema('holdfast')
  out.job = (await jobs.rpc('submit', { p_job: { type: 't', queue: 'q' } })).data
  out.seen = (await jobs.rpc('get_job', { p_id: out.job.id })).data.status
  console.log(JSON.stringify(out))
  process.exit(0)
}
main().catch((problem) => { console.error(problem); process.exit(1) })
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_supabase_js_sends_reads_and_archives(base: str, mail_queue: str, tmp_path: Path) -> None:
    answered = await run_supabase_js(SUPABASE_SCRIPT, tmp_path, base, SERVICE_KEY, mail_queue)
    assert answered["sent"] == [1]
    assert answered["read"][0]["message"] == {"n": 1}
    assert (answered["archived"], answered["rest"]) == (True, [])
    assert [message["message"]["bookmarkId"] for message in answered["bookmarks"]] == [456]
    assert answered["done"] is True
    assert (answered["wrong"], answered["seen"]) == ("42P01", "queued")
