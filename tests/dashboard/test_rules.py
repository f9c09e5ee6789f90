"""What the dashboard promises whoever asks: roles, secrets, forms, sessions, acting on many; by HTTP."""

from __future__ import annotations

import hashlib
import html
import io
import re
import zipfile
from collections.abc import AsyncGenerator, Iterator
from typing import Any
from uuid import UUID

import httpx
import msgspec
import pytest
from exhibition import Exhibition
from hands import Hand, outcome

from holdfast.engine import access, artifacts, insight, jobs, schedules, search, webhooks
from holdfast.engine.connection import Connection
from holdfast.server.dashboard import ROLES
from holdfast.server.dashboard.registry import DEEDS, DOWNLOADS, SCREENS
from holdfast.storage import open_store

SECRET = "hunter2-secret"
JOB = '{"type": "export", "queue": "default"}'
# Forms that would be right, for every action there is. What they need is made anew for each role.
FORMS: dict[str, dict[str, str]] = {
    "/views/save": {"name": "mine", "q": "state:failed"},
    "/views/delete": {"id": str(UUID(int=5))},
    "/jobs/{id}/retry": {},
    "/jobs/{id}/cancel": {"reason": "test"},
    "/jobs/{id}/rerun": {"args": "{}"},
    "/error/ignore": {"cause": "KeyError x.py:f", "span": "1h"},
    "/bulk": {"verb": "retry", "q": "task:no_such_type", "why": "test", "ramp": "10"},
    "/bulk/{id}/control": {"verb": "pause"},
    "/bulk/{id}/undo": {},
    "/batches/{id}/cancel": {},
    "/queue/pause": {"name": "matrix", "span": "15m"},
    "/queue/resume": {"name": "matrix"},
    "/task/submit": {"name": "legacy", "args": "{}"},
    "/messages/requeue": {"queue": "clips", "place": "archive", "all": "yes"},
    "/messages/send": {"queue": "mails", "body": "{}"},
    "/worker/command": {"name": "worker-2", "command": "none"},
    "/schedules/run": {"name": "heartbeat"},
    "/schedules/pause": {"name": "heartbeat"},
    "/schedules/resume": {"name": "heartbeat"},
    "/schedules/delete": {"name": "gone"},
    "/schedules/edit": {"name": "sweep", "cron": "*/20 * * * *", "missed": "skip", "most": "5", "job": JOB},
    "/webhooks/{id}/switch": {"on": "yes"},
    "/limits/set": {"name": "matrix", "queue": "matrix", "max_running": "3"},
    "/limits/remove": {"name": "matrix"},
    "/files/{id}/keep": {"span": "30 days"},
    "/files/{id}/delete": {},
    "/settings": {"theme": "dark"},
}


def submit(shown: Exhibition, **job: Any) -> UUID:
    async def run(conn: Connection) -> UUID:
        return (await jobs.submit(conn, {"type": "legacy", "queue": "matrix", **job})).id

    return shown.ask(run)


def failed(shown: Exhibition, count: int, kind: str = "flaky", queue: str = "rules") -> list[UUID]:
    async def run(conn: Connection) -> list[UUID]:
        made = await jobs.submit_many(
            conn, [{"type": kind, "queue": queue, "attempts": 1} for _ in range(count)]
        )
        hand = Hand(conn, "rules", [queue])
        tasks = await hand.take(count)
        await hand.exchange([outcome(t, "fail", {"type": "E", "message": "m"}) for t in tasks])
        return [one.id for one in made]

    return shown.ask(run)


def target(shown: Exhibition, path: str) -> str:
    if "{id}" not in path:
        return path
    if path.startswith("/jobs/"):
        made = failed(shown, 1)[0] if path.endswith("retry") else submit(shown)
        return path.replace("{id}", str(made))
    if path.startswith("/bulk/"):
        return path.replace("{id}", str(shown.ids["bulk"]))
    if path.startswith("/batches/"):
        return path.replace("{id}", str(shown.ids["batch"]))
    if path.startswith("/webhooks/"):
        return path.replace("{id}", str(shown.ask(webhooks.list_webhooks)[-1].id))
    return path.replace("{id}", str(shown.ask(spare_file)))


async def spare_file(conn: Connection) -> UUID:
    staged = await artifacts.stage_file(conn, {"name": "spare.txt", "content_type": "text/plain"})
    await artifacts.record(conn, staged.id, None, size=1, sha256="0" * 64, meta={})
    return staged.id


@pytest.mark.parametrize("role", ROLES)
def test_each_role_tries_each_action(shown: Exhibition, role: str) -> None:
    """What happens is what the table of permissions says, also where a page would not offer the button."""
    assert set(FORMS) == set(DEEDS), "an action that no test tries"
    with shown.visitor(role) as client:
        for path, entry in DEEDS.items():
            before = shown.ask(lambda conn: access.list_audit(conn, limit=1))
            answer = shown.post(client, target(shown, path), **FORMS[path])
            after = shown.ask(lambda conn: access.list_audit(conn, limit=1))
            if entry.permission in ROLES[role]:
                assert answer.status_code == 303, (role, path, answer.text[-1500:])
            else:
                assert answer.status_code == 403, (role, path, answer.status_code)
                assert after == before, f"{role} left a mark with {path}"


@pytest.mark.parametrize("role", ROLES)
def test_each_role_tries_each_page(shown: Exhibition, role: str) -> None:
    with shown.visitor(role) as client:
        for path, entry in {**SCREENS, **DOWNLOADS}.items():
            if "{" in path:
                continue
            answer = client.get(
                path, params={"name": "browser", "cause": "x", "verb": "retry", "format": "csv"}
            )
            allowed = entry.permission in ROLES[role]
            assert (answer.status_code == 403) is not allowed, (role, path, answer.status_code)


def test_every_action_leaves_its_mark(shown: Exhibition) -> None:
    with shown.visitor("admin") as client:
        for path in DEEDS:
            if path in {"/settings", "/views/delete"}:
                continue
            before = shown.ask(lambda conn: access.list_audit(conn, limit=1))
            assert shown.post(client, target(shown, path), **FORMS[path]).status_code == 303, path
            (entry,) = shown.ask(lambda conn: access.list_audit(conn, limit=1))
            assert [entry] != before, path
            assert entry.actor == "ann (admin)"


def test_forms_from_elsewhere_do_nothing(shown: Exhibition) -> None:
    job = submit(shown)
    with shown.visitor("admin") as client:
        path, token = f"/jobs/{job}/cancel", shown.token(client)
        tries = [
            {"data": {"token": token}, "headers": {"sec-fetch-site": "cross-site"}},
            {"data": {"token": token}, "headers": {"origin": "https://evil.example"}},
            {"data": {"token": token}},
            {"data": {"token": "wrong"}, "headers": {"sec-fetch-site": "same-origin"}},
            {"data": {}, "headers": {"sec-fetch-site": "same-origin"}},
        ]
        for one in tries:
            assert client.post(path, **one).status_code == 403  # type: ignore[arg-type]
        with shown.visitor("admin") as other:
            assert shown.post(other, path, token=token).status_code == 403, "a token of another session"
        assert client.get(path).status_code in {404, 405}
    assert shown.ask(lambda conn: jobs.get_job(conn, job))["status"] == "queued"  # type: ignore[index]


def test_nobody_gets_in_without_a_key(shown: Exhibition) -> None:
    with httpx.Client(base_url=shown.base) as client:
        for path in ("/", "/jobs", "/audit", "/jobs/export?format=csv"):
            answer = client.get(path)
            assert answer.status_code == 303, path
            assert "/login?next=" in answer.headers["location"]
        assert client.get("/live", params={"path": "/"}).status_code == 204
        client.cookies.set("holdfast_session", "eyJyb2xlIjoiYWRtaW4ifQ.0000")
        assert client.get("/").status_code == 303, "a forged session"
        same = {"sec-fetch-site": "same-origin"}
        assert client.post("/login", data={"key": "wrong"}, headers=same).status_code == 403
        good = client.post("/login", data={"key": "hf_test_key", "next": "//evil.example"}, headers=same)
        assert (good.status_code, good.headers["location"]) == (303, "/dashboard/")
        assert "HttpOnly" in good.headers["set-cookie"]
        tries = [client.post("/login", data={"key": "x"}, headers=same).status_code for _ in range(12)]
        assert 429 in tries


def test_a_login_link_works_once(shown: Exhibition) -> None:
    link = shown.link("viewer", "bob")
    with httpx.Client() as client:
        assert client.get(link, headers={"sec-purpose": "prefetch"}).status_code == 503
        assert client.get(link).status_code == 303
        assert "bob" in client.get(f"{shown.base}/settings").text
        assert client.get(link).status_code == 403


def everything(shown: Exhibition, client: httpx.Client, paths: list[str]) -> Iterator[tuple[str, str]]:
    for path in paths:
        yield path, client.get(path).text
    for path in ("/", "/jobs", f"/jobs/{shown.ids['failed']}"):
        with client.stream("GET", "/live", params={"path": path}) as stream:
            for line in stream.iter_lines():
                if line.startswith("data:"):
                    yield f"stream of {path}", line
                    break


@pytest.mark.parametrize("role", ["viewer", "support", "operator"])
def test_secrets_stay_where_they_are(shown: Exhibition, role: str) -> None:
    ids = [shown.ids[name] for name in ("graph", "failed", "running")]
    tabs = ["", "?tab=payload", "?tab=logs", "?tab=events", "?tab=tasks", "/rerun"]
    paths = [
        "/",
        "/jobs",
        "/jobs?q=state:failed",
        "/errors",
        "/error?cause=TimeoutError%20render.py:goto",
        "/messages?queue=clips",
        "/jobs/export?format=csv",
        "/jobs/export?format=jsonl&q=state:failed",
        *(f"/jobs/{one}{tab}" for one in ids for tab in tabs),
    ]
    with shown.visitor(role) as client:
        for path, text in everything(shown, client, paths):
            assert SECRET not in html.unescape(text), path
        assert (
            "is a secret" in client.get("/jobs", params={"q": f"args.api_token:{SECRET}"}).text
            or role == "support"
        )
    with shown.visitor("admin") as client:
        found = [path for path, text in everything(shown, client, paths) if SECRET in text]
        assert len(found) > 5, "the test would not see a leak"


def test_a_message_that_is_retried_tells_why(shown: Exhibition) -> None:
    for role, said in (("admin", f"ValueError: {SECRET} is no"), ("operator", "ValueError: ••• is no")):
        with shown.visitor(role) as client:
            assert said in client.get("/messages?queue=clips").text


def test_support_sees_its_own_tenant_and_no_payload(shown: Exhibition) -> None:
    mine = submit(shown, owner="acme", args={"about": "mine"})
    theirs = submit(shown, owner="zeta", args={"about": "theirs"})
    with shown.visitor("support", "acme") as client:
        assert client.get(f"/jobs/{mine}").status_code == 200
        assert client.get(f"/jobs/{theirs}").status_code == 404
        page = client.get("/jobs", params={"q": "owner:zeta"}).text
        assert str(theirs) not in page
        assert "about" not in client.get(f"/jobs/{mine}?tab=payload").text
        assert "may not search" in client.get("/jobs", params={"q": "args.about:mine"}).text
        exported = client.get("/jobs/export?format=jsonl").text
        owners = {msgspec.json.decode(line)["owner"] for line in exported.splitlines()}
        assert owners == {"acme"}
    with shown.visitor("operator", "acme") as client:
        for verb in ("cancel", "retry", "rerun"):
            assert shown.post(client, f"/jobs/{theirs}/{verb}", args="{}").status_code == 404
        shown.post(client, "/bulk", verb="cancel", q="task:legacy", why="mine only")
        shown.ask(search.drive_bulk)
    assert shown.ask(lambda conn: jobs.get_job(conn, theirs))["status"] == "queued"  # type: ignore[index]
    assert shown.ask(lambda conn: jobs.get_job(conn, mine))["status"] == "cancelled"  # type: ignore[index]


def test_forty_jobs_of_one_transaction_page_by_page(shown: Exhibition) -> None:
    async def many(conn: Connection) -> list[UUID]:
        made = await jobs.submit_many(conn, [{"type": "forty", "queue": "forty"} for _ in range(140)])
        return [one.id for one in made]

    made = shown.ask(many)
    seen: list[str] = []
    with shown.visitor("viewer") as client:
        path: str | None = "/jobs?q=task:forty"
        while path:
            text = client.get(path).text
            seen += re.findall(r'data-row="([0-9a-f-]{36})"', text)
            more = re.search(r'href="/dashboard(/jobs\?[^"]*)" rel="next"', text)
            path = html.unescape(more[1]) if more else None
    assert len(seen) == len(set(seen)) == 140
    assert set(seen) == {str(one) for one in made}


def test_many_failed_jobs_go_back_and_are_taken_back(shown: Exhibition) -> None:
    made = failed(shown, 300, "bulky", "bulky")
    with shown.visitor("operator") as client:
        page = client.get("/bulk/new", params={"verb": "retry", "q": "task:bulky"}).text
        assert "Retry 300 jobs" in page
        assert shown.post(client, "/bulk", verb="retry", q="task:bulky").status_code == 422, (
            "without a reason"
        )
        answer = shown.post(
            client, "/bulk", verb="retry", q="task:bulky", why="mended", ramp="10, 100", stop="20"
        )
        place = answer.headers["location"].removeprefix("/dashboard")
        bulk_id = UUID(place.rpartition("/")[2])
        shown.ask(search.drive_bulk)
        assert "wave 1" in client.get(place).text

        async def start_some(conn: Connection) -> None:
            await Hand(conn, "bulky", ["bulky"]).take(4)

        shown.ask(start_some)
        assert shown.post(client, f"{place}/undo").status_code == 303
        members = shown.ask(lambda conn: search.bulk_members(conn, bulk_id, limit=300))
        outcomes = [m["outcome"] for m in members]
        assert (outcomes.count("undone"), outcomes.count("done"), outcomes.count(None)) == (6, 4, 290)
        audit = client.get("/audit").text
        assert "bulk.retry" in audit
        assert "bulk.undo" in audit
    assert len(made) == 300


def test_edit_and_run_again(shown: Exhibition) -> None:
    old = shown.ids["failed"]
    before = shown.ask(lambda conn: jobs.get_job(conn, old))
    with shown.visitor("operator") as client:
        form = client.get(f"/jobs/{old}/rerun").text
        assert 'name="arg.url"' in form
        assert "•••" in form
        wrong = {
            "arg.url": "https://e.example",
            "arg.width": "0",
            "arg.format": "png",
            "arg.api_token": "•••",
        }
        refused = shown.post(client, f"/jobs/{old}/rerun", **wrong)
        assert refused.status_code == 422
        assert "width" in refused.text
        assert 'value="https://e.example"' in refused.text, "what was typed is still there"
        made = shown.post(client, f"/jobs/{old}/rerun", **{**wrong, "arg.width": "640"})
        assert made.status_code == 303, made.text[-500:]
        place = made.headers["location"].removeprefix("/dashboard")
        assert str(old) in client.get(place).text
        assert place.rpartition("/")[2] in client.get(f"/jobs/{old}").text
    new = shown.ask(lambda conn: insight.task_payload(conn, UUID(place.rpartition("/")[2])))
    assert new is not None
    assert new["args"] == {"url": "https://e.example", "width": 640, "format": "png", "api_token": SECRET}
    assert shown.ask(lambda conn: jobs.get_job(conn, old)) == before


def test_a_form_of_a_task_names_the_wrong_field(shown: Exhibition) -> None:
    with shown.visitor("operator") as client:
        answer = shown.post(client, "/task/submit", name="screenshot", **{"arg.width": "wide"})
        assert answer.status_code == 422
        assert "width" in answer.text
        answer = shown.post(
            client, "/task/submit", name="screenshot", **{"arg.url": "https://e.example", "arg.width": "8"}
        )
        assert answer.status_code == 303


def test_a_paused_queue_says_who_and_until_when(shown: Exhibition) -> None:
    job = submit(shown, queue="pausing")
    with shown.visitor("operator") as client:
        shown.post(client, "/queue/pause", name="pausing", span="1h", why="429 storm")

        async def claimed(conn: Connection) -> int:
            return len(await Hand(conn, "pausing", ["pausing"]).take(5))

        assert shown.ask(claimed) == 0
        text = re.sub(r"<[^>]+>", "", client.get(f"/jobs/{job}").text)
        assert "queue pausing was paused by ann" in text
        assert "429 storm" in text
        assert "in 60 m" in text
        shown.post(client, "/queue/resume", name="pausing")
    assert shown.ask(claimed) == 1


def test_two_who_act_on_one_job(shown: Exhibition) -> None:
    job = submit(shown)
    with shown.visitor("operator") as one, shown.visitor("admin") as two:
        assert shown.post(one, f"/jobs/{job}/cancel").status_code == 303
        answer = shown.post(two, f"/jobs/{job}/cancel")
        assert answer.status_code == 303
        assert "ended already: cancelled" in two.get(f"/jobs/{job}").text


def test_a_slow_database_shows_the_last_good_page(shown: Exhibition) -> None:
    """The page is read once while all is well; then its tables are locked for longer than it may wait."""
    with shown.visitor("viewer") as client:
        assert "Needs attention" in client.get("/?span=24h").text

        async def while_locked(conn: Connection) -> list[httpx.Response]:
            async with conn.transaction():
                await conn.execute("lock table holdfast.samples in access exclusive mode")
                async with httpx.AsyncClient(
                    base_url=shown.base, cookies=client.cookies, timeout=30
                ) as other:
                    return [await other.get("/?span=24h"), await other.get("/?span=6h")]

        known, unknown = shown.ask(while_locked)
        assert (known.status_code, unknown.status_code) == (200, 503)
        for answer in (known, unknown):
            assert "took longer than two seconds" in answer.text
        assert "Needs attention" in known.text


def test_files_are_fetched_as_attachments_by_those_who_may(shown: Exhibition) -> None:
    text = b"<script>alert(1)</script>"

    async def keep(conn: Connection) -> tuple[str, UUID]:
        batch = await jobs.open_batch(conn, "files", owner="acme")
        job = await jobs.submit(
            conn, {"type": "legacy", "queue": "files", "owner": "acme", "batch": str(batch)}
        )
        about = {"name": "evil.html", "kind": "file", "content_type": "text/html", "job": str(job.id)}
        staged = await artifacts.stage_file(conn, about)

        async def pieces() -> AsyncGenerator[bytes]:
            yield text

        await open_store(shown.settings).put(staged.key, pieces())
        digest = hashlib.sha256(text).hexdigest()
        await artifacts.record(conn, staged.id, None, size=len(text), sha256=digest, meta={})
        return str(staged.id), batch

    file, batch = shown.ask(keep)
    with shown.visitor("viewer") as client:
        answer = client.get(f"/files/{file}/content")
        assert (answer.status_code, answer.content) == (200, text)
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"].startswith("attachment")
        assert "sandbox" in answer.headers["content-security-policy"]
        packed = client.get(f"/batches/{batch}/zip")
        with zipfile.ZipFile(io.BytesIO(packed.content)) as archive:
            assert text in [archive.read(name) for name in archive.namelist()]
    with shown.visitor("support", "acme") as client:
        assert client.get(f"/files/{file}/content").status_code == 403
    with shown.visitor("viewer", "zeta") as client:
        assert client.get(f"/files/{file}/content").status_code == 404
        assert client.get(f"/batches/{batch}/zip").status_code == 404


def test_spreadsheets_get_no_formulas(shown: Exhibition) -> None:
    submit(shown, type="=HYPERLINK(1)")
    with shown.visitor("viewer") as client:
        lines = client.get("/jobs/export", params={"format": "csv", "q": 'task:"=HYPERLINK(1)"'}).text
        assert ",'=HYPERLINK(1)," in lines


def test_a_schedule_is_changed_after_a_look_at_its_times(shown: Exhibition) -> None:
    with shown.visitor("admin") as client:
        form = {"name": "nightly-report", "cron": "15 4 * * tue", "timezone": "UTC", "missed": "skip"}
        form |= {"most": "3", "job": JOB}
        looked = shown.post(client, "/schedules/edit", **form, look="yes")
        assert looked.status_code == 200
        assert "Tuesday at 04:15" in looked.text
        assert looked.text.count("<li>Tue ") == 5
        found = shown.ask(lambda conn: schedules.get_schedule(conn, "nightly-report"))
        assert found.cron == "0 3 * * *", "a look changes nothing"
        assert shown.post(client, "/schedules/edit", **form).status_code == 303
        found = shown.ask(lambda conn: schedules.get_schedule(conn, "nightly-report"))
        assert (found.cron, found.timezone, found.missed, found.most) == ("15 4 * * tue", "UTC", "skip", 3)
        [entry] = shown.ask(lambda conn: access.list_audit(conn, limit=1))
        assert (entry.action, entry.target) == ("schedule.edit", "nightly-report")
        for field, value in (
            ("cron", "61 * * * *"),
            ("cron", ""),
            ("every_s", "60"),
            ("timezone", "Mars/Olympus"),
            ("missed", "some"),
            ("most", "many"),
            ("job", "{"),
            ("job", "[]"),
            ("job", "{}"),
        ):
            wrong = shown.post(client, "/schedules/edit", **{**form, field: value})
            assert wrong.status_code == 422, (field, value)
            assert 'role="alert"' in wrong.text
        again = shown.ask(lambda conn: schedules.get_schedule(conn, "nightly-report"))
        assert again == found
        assert client.get("/schedules/edit?name=nothing").status_code == 404


def test_files_are_shown_by_what_they_are_and_never_as_pages(shown: Exhibition) -> None:
    kinds = {"shot.png": "<img", "report.pdf": "<iframe", "voice.wav": "<audio"}
    kinds |= dict.fromkeys(("ocr.json", "page.html", "drawing.svg", "pretends.png"), '<pre class="json"')
    types = {"shot.png": "image/png", "report.pdf": "application/pdf", "voice.wav": "audio/wav"}
    with shown.visitor("viewer") as client:
        for name, file in shown.ids["files"].items():
            page = client.get(f"/files/{file}").text
            assert kinds.get(name, "are not shown") in page, name
            assert "<script>" not in page, name
            answer = client.get(f"/files/{file}/preview")
            assert answer.status_code == (200 if name in types else 404), name
            if name in types:
                assert answer.headers["content-type"] == types[name]
                assert answer.headers["x-content-type-options"] == "nosniff"
                assert "default-src 'none'" in answer.headers["content-security-policy"]
                assert ("sandbox" in answer.headers["content-security-policy"]) == (name != "report.pdf")
    with shown.visitor("support") as client:
        file = shown.ids["files"]["ocr.json"]
        assert "18211" not in client.get(f"/files/{file}").text
        assert client.get(f"/files/{file}/preview").status_code == 403
    with shown.visitor("viewer", "zeta") as client:  # the job is acme's
        for path in (f"/files/{file}", f"/files/{file}/preview", f"/files/{file}/content"):
            assert client.get(path).status_code == 404


def test_a_file_is_kept_longer(shown: Exhibition) -> None:
    file = shown.ids["files"]["ocr.json"]
    with shown.visitor("operator") as client:
        answer = shown.post(client, f"/files/{file}/keep", span="30 days")
        assert answer.headers["location"].endswith(f"/files/{file}")
        kept = shown.ask(lambda conn: artifacts.get_artifact(conn, file))
        assert kept.expires_at is not None
        assert 29 < (kept.expires_at - kept.created_at).days <= 30
        shown.post(client, f"/files/{file}/keep", span="for ever")
        assert shown.ask(lambda conn: artifacts.get_artifact(conn, file)).expires_at is None
        assert shown.post(client, f"/files/{file}/keep", span="a while").status_code == 422


def test_a_webhook_that_was_switched_off_is_seen_and_switched_on(shown: Exhibition) -> None:
    with shown.visitor("admin") as client:
        page = client.get("/webhooks").text
        assert "old.example.net" in page
        assert SECRET not in page
        assert "this address is gone" in client.get("/").text
        off = next(one for one in shown.ask(webhooks.list_webhooks) if "old." in one.url)
        assert shown.post(client, f"/webhooks/{off.id}/switch", on="yes").status_code == 303
        assert next(one for one in shown.ask(webhooks.list_webhooks) if one.id == off.id).active
        assert shown.post(client, f"/webhooks/{UUID(int=7)}/switch", on="yes").status_code == 404
    with shown.visitor("viewer", "acme") as client:
        page = client.get("/webhooks").text
        assert "acme.example.com" in page
        assert "billing.example.org" not in page
