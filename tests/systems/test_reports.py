"""Reports: sixteen documents from start to end, in the contract's words and numbers."""

from __future__ import annotations

import io
from datetime import timedelta
from typing import Any
from uuid import uuid4

import msgspec
import pypdf
import pytest
from callers import bearer, token, watching
from homes import KEY, House, User
from provider_server import Provider, chat, provider
from writers import BriefWriter, StuckWriter

from holdfast.systems.providers import TextProvider
from holdfast.systems.providers.mp3 import measure
from holdfast.systems.providers.speech import SpeechVoice
from holdfast.systems.providers.text import ChatText
from holdfast.systems.reports.chapters import CHAPTERS, phase_of
from holdfast.systems.reports.people import Person, ReportParams, calculate
from holdfast.systems.reports.work import nuclear_v2
from holdfast.testing import Clock, eventually

JOBS = "/api/jobs"
PARAMS: dict[str, Any] = {
    "person1": {"name": "Ana Ruiz", "birthDate": "1984-02-29", "shoeSize": 38},
    "person2": {"name": "Bo Lind", "birthDate": "1990-07-01"},
    "systems": ["vedic", "western", "human_design"],
}


KINDS = {"audio_mp3": "audio", "pdf": "pdf", "json": "json"}


async def start(user: User, params: dict[str, Any] = PARAMS) -> str:
    asked = await user.post(f"{JOBS}/start", {"type": "nuclear_v2", "params": params})
    assert asked.status_code == 202, asked.text
    return str(asked.json()["id"])


async def ended(user: User, job: str, within: float = 100) -> dict[str, Any]:
    async def over() -> dict[str, Any] | None:
        told: dict[str, Any] = (await user.get(f"{JOBS}/{job}")).json()
        return told if told["status"] in ("complete", "failed", "cancelled") else None

    found: dict[str, Any] = await eventually(
        over, within=timedelta(seconds=within), what=f"report {job} ends"
    )
    return found


async def test_a_report_from_start_to_end(bindery: House) -> None:
    ann = bindery.user()
    job = await start(ann)
    told = (await ann.get(f"{JOBS}/{job}")).json()
    assert (told["status"], told["progress"]["percent"], told["progress"]["phase"]) == ("queued", 0, "queued")
    seen: list[dict[str, Any]] = []
    async with bindery.worker(writer=BriefWriter()):
        async with watching(bindery.web, f"{JOBS}/{job}/stream", ann.headers) as stream:
            while (frame := await stream.next(90)) is not None:
                seen.append(frame.data)
                last = frame
        told = await ended(ann, job)
    assert last.event == "complete"
    _check_progress([each["progress"] for each in seen])
    assert told["progress"] == {
        "percent": 100, "phase": "complete", "docsComplete": 16, "docsTotal": 16,
        "message": told["progress"]["message"],
    }  # fmt: skip
    files = told["artifacts"]
    assert {kind: sum(file["type"] == kind for file in files) for kind in ("audio_mp3", "pdf", "json")} == {
        "audio_mp3": 16, "pdf": 17, "json": 17}  # fmt: skip
    await _check_files(bindery, files)
    listed = (await ann.get(JOBS)).json()["jobs"]
    assert [(each["id"], each["status"]) for each in listed] == [(job, "complete")]
    async with bindery.db.connection() as connection:
        rows = await connection.fetch("select * from public.job_artifacts where job_id = $1", job)
    # In the source's places, whatever the keys in the store are.
    assert {(row["artifact_type"], row["storage_path"]) for row in rows} == {
        (file["type"], f"{ann.id}/{job}/{KINDS[file['type']]}/{file['name']}") for file in files
    }
    assert all("://" not in str(value) for row in rows for value in row.values())


def _check_progress(told: list[dict[str, Any]]) -> None:
    percents = [each["percent"] for each in told]
    assert percents == sorted(percents)
    assert [each["docsComplete"] for each in told] == sorted(each["docsComplete"] for each in told)
    ranges = {"queued": (0, 0), "calculating": (0, 10), "text": (10, 50), "pdf": (50, 70), "audio": (70, 95),
              "finalizing": (95, 99), "complete": (100, 100)}  # fmt: skip
    for each in told:
        low, high = ranges[each["phase"]]
        assert low <= each["percent"] <= high, each
    assert [each["percent"] for each in told if each["phase"] == "calculating"][-1] == 5
    assert {"text", "pdf", "audio"} <= {each["phase"] for each in told}


async def _check_files(house: House, files: list[dict[str, Any]]) -> None:
    by_name = {file["name"]: file for file in files}
    sound = by_name["chapter2.mp3"]
    mp3 = await house.web.get(sound["url"])
    measured = measure(mp3.content)
    assert mp3.headers["content-type"] == "audio/mpeg"
    assert measured is not None
    assert (measured.bit_rate, measured.seconds) == (128, sound["duration"])
    chapter = pypdf.PdfReader(io.BytesIO((await house.web.get(by_name["chapter2.pdf"]["url"])).content))
    assert "#image(x) <b>bold</b> *stars*" in chapter.pages[0].extract_text().replace("\n", " ")
    book = pypdf.PdfReader(io.BytesIO((await house.web.get(by_name["full_nuclear.pdf"]["url"])).content))
    assert len(book.pages) == by_name["full_nuclear.pdf"]["pages"] == 18
    assert "Ana Ruiz" in book.pages[0].extract_text()
    whole = (await house.web.get(by_name["full_nuclear.json"]["url"])).json()
    assert [each["chapter"]["title"] for each in whole["documents"]] == [c.title for c in CHAPTERS]
    assert whole["documents"][1]["audio"]["duration"] == sound["duration"]


def test_the_weights_are_the_phases() -> None:
    graph = nuclear_v2(msgspec.convert(PARAMS, ReportParams))
    by_type: dict[str, float] = {}
    for node in graph.nodes.values():
        by_type[node.call.task.name] = by_type.get(node.call.task.name, 0) + node.weight
    assert len(graph.nodes) == 1 + 3 * 16 + 1
    assert by_type == {"calculating": 10, "text_generation": 40, "pdf_generation": 20, "audio_generation": 25,
                       "finalizing": 5}  # fmt: skip
    for chapter in CHAPTERS:
        for kind in ("pdf", "audio"):
            assert set(graph.nodes[f"{kind} {chapter.slug}"].after) == {f"text {chapter.slug}"}
    at = {
        0: "calculating",
        5: "calculating",
        10: "text",
        49.9: "text",
        50: "pdf",
        70: "audio",
        95: "finalizing",
    }
    assert {percent: phase_of("processing", percent) for percent in at} == at
    assert (phase_of("queued", 0), phase_of("complete", 100)) == ("queued", "complete")


def test_what_a_calendar_knows() -> None:
    facts = calculate(msgspec.convert(PARAMS, ReportParams))
    assert (facts.weekday1, facts.weekday2, facts.path1, facts.years_apart) == ("Wednesday", "Sunday", 8, 6)
    nobody = ReportParams(person1=Person(name="a", birth_date="2023-02-31"), person2=Person(name="b"))
    assert calculate(nobody) == msgspec.convert({}, type(facts))


@pytest.mark.parametrize(
    "body",
    [
        {}, {"type": "nuclear_v2"}, {"type": "nuclear_v2", "params": {}},
        {"type": "nuclear_v2", "params": {**PARAMS, "systems": []}},
        {"type": "nuclear_v2", "params": {**PARAMS, "person1": {"name": ""}}},
        {"type": "nuclear_v2", "params": {**PARAMS, "person1": {"name": "x" * 201}}},
        {"type": "nuclear_v2", "params": {**PARAMS, "person1": {"name": "x", "birthDate": "yesterday"}}},
        {"type": "nuclear_v2", "params": {**PARAMS, "systems": ["x"] * 11}},
    ],
)  # fmt: skip
async def test_what_does_not_fit_is_refused(bindery: House, body: dict[str, Any]) -> None:
    assert (await bindery.user().post(f"{JOBS}/start", body)).status_code == 422


async def test_reports_belong_to_their_owners(bindery: House) -> None:
    ann, bob = bindery.user(), bindery.user()
    job = await start(ann)
    for path in (f"{JOBS}/{job}", f"{JOBS}/{job}/stream", f"{JOBS}/{uuid4()}", f"{JOBS}/none"):
        assert (await bob.get(path)).status_code == 404
        assert (await bindery.web.get(path)).status_code == 401
    assert (await bob.delete(f"{JOBS}/{job}")).status_code == 404
    assert (await bob.get(JOBS)).json()["jobs"] == []
    assert (await bindery.web.post(f"{JOBS}/start", json={})).status_code == 401
    async with bindery.db.transaction() as connection:
        await connection.execute(
            "select set_config('request.jwt.claims', $1, true)", f'{{"sub": "{bob.id}"}}'
        )
        await connection.execute("set local role authenticated")
        assert await connection.fetchval("select count(*) from public.jobs") == 0
        assert await connection.fetchval("select count(*) from public.job_artifacts") == 0
        for statement in (
            "select * from public.job_tasks",
            "select * from public.claim_tasks('bob', 1, null)",
            f"select public.complete_task('{job}', 'bob', null)",
        ):
            with pytest.raises(Exception, match="permission"):
                async with connection.transaction():
                    await connection.execute(statement)
    assert token(ann.id)


async def test_the_api_keeps_its_own_words_for_what_is_no_report(bindery: House) -> None:
    """The routes of the reports are the API's own paths: which words are used depends on job and caller."""
    ann, bob = bindery.user(), bindery.user()
    report = await start(ann)
    async with bindery.db.connection() as connection:
        other = await connection.fetchval(
            "select holdfast.submit(jsonb_build_object('type', 'plain', 'owner', $1::text)) ->> 'id'", ann.id
        )
    told = (await ann.get(f"{JOBS}/{report}")).json()
    assert set(told) >= {"id", "status", "progress", "artifacts"}
    assert set(told["progress"]) == {"percent", "phase", "docsComplete", "docsTotal", "message"}
    plain = await ann.get(f"{JOBS}/{other}?wait=0")
    assert (plain.json()["status"], plain.json()["counts"]["total"]) == ("queued", 1)
    assert plain.headers["etag"]
    listed = {each["id"]: each for each in (await ann.get(f"{JOBS}?limit=10")).json()["jobs"]}
    assert set(listed) == {report, other}
    # Clients of the source ask without a query, and know nothing of other jobs.
    assert [each["id"] for each in (await ann.get(JOBS)).json()["jobs"]] == [report]
    assert "docsTotal" in listed[report]["progress"]
    assert "counts" in listed[other]
    assert len((await ann.get(f"{JOBS}?type=plain")).json()["jobs"]) == 1
    assert (await ann.get(f"{JOBS}?limit=none")).status_code == 422
    assert (await ann.get(f"{JOBS}/{other}/stream")).status_code == 404
    # A service is told in the API's words, unless it says for whom it asks.
    service = bearer(KEY)
    own = (await bindery.web.get(f"{JOBS}/{report}", headers=service)).json()
    assert (own["status"], own["counts"]["total"]) == ("queued", 50)
    for user, status in ((ann, 200), (bob, 404)):
        acting = await bindery.web.get(f"{JOBS}/{report}", headers={**service, "x-user-id": user.id})
        assert acting.status_code == status
    assert (await ann.post(f"{JOBS}/start", {"type": "plain", "params": {}})).status_code == 403
    started = await bindery.web.post(f"{JOBS}/start", headers=service, json={"type": "plain", "params": {}})
    assert started.json()["created"] is True
    assert (await ann.delete(f"{JOBS}/{other}")).json() == {"cancelled": True, "status": "cancelled"}
    assert (await ann.delete(f"{JOBS}/{report}")).json()["status"] == "cancelled"


async def test_the_same_key_is_the_same_report(bindery: House) -> None:
    ann = bindery.user()
    body = {"type": "nuclear_v2", "params": PARAMS}
    headers = {**ann.headers, "idempotency-key": "once"}
    first, second = [await bindery.web.post(f"{JOBS}/start", json=body, headers=headers) for _ in range(2)]
    assert (first.status_code, second.status_code) == (202, 200)
    assert first.json()["id"] == second.json()["id"]


async def test_cancel_at_any_stage(bindery: House) -> None:
    ann = bindery.user()
    waiting = await start(ann)
    assert (await ann.delete(f"{JOBS}/{waiting}")).json()["status"] == "cancelled"
    running = await start(ann)
    writer = StuckWriter()
    async with bindery.worker(writer=writer):
        await eventually(lambda: writer.asked >= 3, within=timedelta(seconds=30))
        assert (await ann.delete(f"{JOBS}/{running}")).json()["status"] == "cancelled"
        assert (await ann.get(f"{JOBS}/{running}")).json()["status"] == "cancelled"
    assert (await ann.delete(f"{JOBS}/{running}")).json()["status"] == "cancelled"


async def test_too_many_requests_put_the_provider_to_rest_for_all(bindery: House, clock: Clock) -> None:
    ann = bindery.user()
    job = await start(ann)
    async with provider() as server:
        server.answers = lambda *_: (429, {"retry-after": "40"}, b"")
        text = ChatText(server.url, model="m")
        voice = SpeechVoice(server.url, model="m", voice="v")
        async with bindery.worker(writer=text, voice=voice, concurrency=2):

            async def resting() -> Any:
                async with bindery.db.connection() as connection:
                    return await connection.fetchval(
                        "select extract(epoch from max(asleep_until) - holdfast.now()) from holdfast.limits"
                        " where key = 'text provider' and asleep_until > holdfast.now()"
                    )

            assert 20 < float(await eventually(resting, within=timedelta(seconds=30))) <= 40
            asked = len(server.asked)
            assert asked <= 3  # those under way when the first refusal came; then all of them rest
            server.answers = _brief
            await clock.advance(timedelta(seconds=45))
            told = await ended(ann, job)
        await text.close()
        await voice.close()
    assert told["status"] == "complete"
    async with bindery.db.connection() as connection:
        charged = await connection.fetchval("select count(*) from holdfast.attempts where outcome = 'failed'")
    assert charged == 0


def _brief(path: str, body: Any) -> Any:
    if path.endswith("completions"):
        return chat("A short chapter.")
    return Provider().answers(path, {**body, "input": "short"})


@pytest.mark.parametrize("step", ["text", "speech"])
async def test_a_provider_that_fails_is_asked_three_times(bindery: House, clock: Clock, step: str) -> None:
    ann = bindery.user()
    job = await start(ann)
    async with provider() as server:
        server.answers = lambda *_: (500, {}, b"the secret prompt")
        writer: TextProvider = ChatText(server.url, model="m") if step == "text" else BriefWriter()
        voice = SpeechVoice(server.url, model="m", voice="v")
        async with bindery.worker(writer=writer, voice=voice):

            async def over() -> Any:
                await clock.advance(timedelta(seconds=10))
                told = (await ann.get(f"{JOBS}/{job}")).json()
                return told if told["status"] == "failed" else None

            told = await eventually(over, within=timedelta(seconds=60))
        if isinstance(writer, ChatText):
            await writer.close()
        await voice.close()
    assert told["error"]
    assert "secret" not in str(told)
    async with bindery.db.connection() as connection:
        most = await connection.fetchval("select max(attempts) from public.job_tasks where job_id = $1", job)
    assert most == 3


async def test_a_script_that_knows_only_sql_drives_a_whole_report(bindery: House) -> None:
    ann = bindery.user()
    job = await start(ann)
    async with bindery.db.connection() as sql:
        assert await sql.fetchval("select status from public.jobs where id = $1", job) == "queued"
        done: list[str] = []
        while True:
            tasks = await sql.fetch("select * from public.claim_tasks('script-1', 5, null)")
            if not tasks:
                break
            for task in tasks:
                assert await sql.fetchval("select public.heartbeat_task($1, 'script-1')", task["id"])
                row = await sql.fetchrow("select * from public.job_tasks where id = $1", task["id"])
                assert row is not None
                assert (row["status"], row["worker_id"], row["attempts"]) == ("claimed", "script-1", 1)
                assert row["sequence"] == task["sequence"]
                given = msgspec.json.decode(task["input"])
                if task["task_type"] in ("pdf_generation", "audio_generation"):
                    assert given["text"]["text"] == f"Words about {given['slug']}."
                with pytest.raises(Exception, match="passed to someone else"):
                    await sql.execute("select public.complete_task($1, 'script-2', null)", task["id"])
                output = _answer(task["task_type"], given)
                await sql.execute(
                    "select public.complete_task($1, 'script-1', $2)",
                    task["id"],
                    msgspec.json.encode(output).decode(),
                )
                done.append(task["task_type"])
        assert len(done) == 50
        assert done[0] == "calculating"
        assert done[-1] == "finalizing"
        row = await sql.fetchrow("select * from public.jobs where id = $1", job)
        assert row is not None
        progress = msgspec.json.decode(row["progress"])
        assert (row["status"], progress["percent"], progress["docsComplete"]) == ("complete", 100, 16)
        assert (await ann.get(f"{JOBS}/{job}")).json()["status"] == "complete"
        assert await sql.fetchval("select public.reclaim_stale_tasks()") == 0


def _answer(kind: str, given: dict[str, Any]) -> Any:
    if kind == "calculating":
        return {"years_apart": 6}
    if kind == "text_generation":
        text = f"Words about {given['slug']}."
        return {"slug": given["slug"], "text": text, "by": "a script", "language": "en"}
    if kind == "finalizing":
        assert len(given["texts"]) == len(given["pdfs"]) == len(given["recordings"]) == 16
        return {"documents": 16}
    return {"name": f"{given['slug']}.bin", "size": 1}


async def test_an_outside_worker_beats_once_a_minute_and_keeps_its_task(bindery: House, clock: Clock) -> None:
    job = await start(bindery.user())
    async with bindery.db.connection() as sql:
        task = await sql.fetchval("select id from public.claim_tasks('script-1', 5, null)")
        for _ in range(3):
            await clock.advance(timedelta(seconds=60))
            assert await sql.fetchval("select public.reclaim_stale_tasks()") == 0
            assert await sql.fetchval("select public.heartbeat_task($1, 'script-1')", task)
            ago = await sql.fetchval(
                "select extract(epoch from holdfast.now() - heartbeat) from public.job_tasks where id = $1",
                task,
            )
            assert -1 < ago < 30
        assert await sql.fetchval("select public.complete_task($1, 'script-1', '{}')", task)
        row = await sql.fetchrow("select * from public.job_tasks where id = $1", task)
        assert row is not None
        assert set(row.keys()) == {
            "id", "job_id", "task_type", "sequence", "status", "worker_id", "claimed_at", "heartbeat",
            "attempts", "max_attempts", "input", "output", "error",
        }  # fmt: skip
        assert (row["status"], row["max_attempts"], row["heartbeat"]) == ("complete", 3, None)
        told = await sql.fetchrow("select * from public.jobs where id = $1", job)
        assert {"id", "user_id", "type", "params", "status", "progress"} <= set((told or {}).keys())
        assert msgspec.json.decode((told or {})["progress"])["phase"] == "text"


async def test_an_outside_worker_may_fail_and_die(bindery: House, clock: Clock) -> None:
    ann = bindery.user()
    job = await start(ann)
    async with bindery.db.connection() as sql:
        task = await sql.fetchval("select id from public.claim_tasks('script-1', 1, array['calculating'])")
        await sql.execute("select public.fail_task($1, 'script-1', 'no calendar')", task)
        row = await sql.fetchrow("select status, attempts, error from public.job_tasks where id = $1", task)
        assert dict(row or {}) == {"status": "pending", "attempts": 1, "error": "no calendar"}
        await clock.advance(timedelta(seconds=30))
        again = await sql.fetch("select * from public.claim_tasks('script-2', 1, array['calculating'])")
        assert [each["id"] for each in again] == [task]
        await clock.advance(timedelta(seconds=180))  # and it dies
        assert await sql.fetchval("select public.reclaim_stale_tasks()") == 1
        with pytest.raises(Exception, match="passed to someone else"):
            await sql.execute("select public.complete_task($1, 'script-2', null)", task)
    assert (await bindery.web.get(f"/api/jobs/{job}", headers=bearer(KEY))).status_code == 200
