"""Reports: the report contract from start to end, ownership, providers, and external workers in SQL."""

from __future__ import annotations

import io
from datetime import timedelta
from typing import Any
from uuid import uuid4

import msgspec
import pypdf
import pytest
from api_clients import bearer_headers, make_token, open_event_stream
from provider_server import (
    LOOPBACK_POLICY,
    ProviderServer,
    make_chat_response,
    make_config,
    respond_by_default,
    run_provider_server,
)
from stub_text_providers import HangingTextProvider, OneSentenceTextProvider
from system_harness import SERVICE_KEY, SystemHarness, SystemUser

from holdfast.systems.providers.mp3 import measure_mp3
from holdfast.systems.providers.openai_speech import OpenAISpeechProvider
from holdfast.systems.providers.openai_text import OpenAITextProvider
from holdfast.systems.reports.chapters import CHAPTERS, get_report_phase
from holdfast.systems.reports.report_params import Person, ReportParams, calculate_calendar_facts
from holdfast.systems.reports.report_tasks import nuclear_v2
from holdfast.testing import Clock, wait_until

JOBS_PATH = "/api/jobs"
REPORT_PARAMS: dict[str, Any] = {
    "person1": {"name": "Ana Ruiz", "birthDate": "1984-02-29"},
    "person2": {"name": "Bo Lind", "birthDate": "1990-07-01"},
    "systems": ["vedic", "western", "human_design"],
}


FOLDER_BY_TYPE = {"audio_mp3": "audio", "pdf": "pdf", "json": "json"}


async def start_report(user: SystemUser, params: dict[str, Any] = REPORT_PARAMS) -> str:
    response = await user.post(f"{JOBS_PATH}/start", {"type": "nuclear_v2", "params": params})
    assert response.status_code == 202, response.text
    return str(response.json()["id"])


async def wait_for_report(user: SystemUser, job: str, within: float = 100) -> dict[str, Any]:
    async def find_ended_report() -> dict[str, Any] | None:
        report: dict[str, Any] = (await user.get(f"{JOBS_PATH}/{job}")).json()
        return report if report["status"] in ("complete", "failed", "cancelled") else None

    report: dict[str, Any] = await wait_until(
        find_ended_report, within=timedelta(seconds=within), what=f"report {job} ends"
    )
    return report


async def test_a_report_from_start_to_end(reports_system: SystemHarness) -> None:
    ann = reports_system.create_user()
    job = await start_report(ann)
    report = (await ann.get(f"{JOBS_PATH}/{job}")).json()
    assert (report["status"], report["progress"]["percent"], report["progress"]["phase"]) == (
        "queued",
        0,
        "queued",
    )
    events: list[dict[str, Any]] = []
    async with reports_system.run_worker(text_provider=OneSentenceTextProvider()):
        async with open_event_stream(reports_system.http, f"{JOBS_PATH}/{job}/stream", ann.headers) as stream:
            while (frame := await stream.read_next(90)) is not None:
                events.append(frame.data)
                last = frame
        report = await wait_for_report(ann, job)
    assert last.event == "complete"
    _check_progress([event["progress"] for event in events])
    assert report["progress"] == {
        "percent": 100, "phase": "complete", "docsComplete": 16, "docsTotal": 16,
        "message": report["progress"]["message"],
    }  # fmt: skip
    files = report["artifacts"]
    assert {kind: sum(file["type"] == kind for file in files) for kind in ("audio_mp3", "pdf", "json")} == {
        "audio_mp3": 16, "pdf": 17, "json": 17}  # fmt: skip
    await _check_files(reports_system, files)
    reports = (await ann.get(JOBS_PATH)).json()["jobs"]
    assert [(listed["id"], listed["status"]) for listed in reports] == [(job, "complete")]
    async with reports_system.db.connection() as connection:
        rows = await connection.fetch("select * from public.job_artifacts where job_id = $1", job)
    # These are the paths of the contract, which differ from the keys in the store.
    assert {(row["artifact_type"], row["storage_path"]) for row in rows} == {
        (file["type"], f"{ann.id}/{job}/{FOLDER_BY_TYPE[file['type']]}/{file['name']}") for file in files
    }
    assert all("://" not in str(value) for row in rows for value in row.values())


def _check_progress(progress: list[dict[str, Any]]) -> None:
    percents = [state["percent"] for state in progress]
    assert percents == sorted(percents)
    assert [state["docsComplete"] for state in progress] == sorted(
        state["docsComplete"] for state in progress
    )
    ranges = {"queued": (0, 0), "calculating": (0, 10), "text": (10, 50), "pdf": (50, 70), "audio": (70, 95),
              "finalizing": (95, 99), "complete": (100, 100)}  # fmt: skip
    for state in progress:
        low, high = ranges[state["phase"]]
        assert low <= state["percent"] <= high, state
    assert [state["percent"] for state in progress if state["phase"] == "calculating"][-1] == 5
    assert {"text", "pdf", "audio"} <= {state["phase"] for state in progress}


async def _check_files(system: SystemHarness, files: list[dict[str, Any]]) -> None:
    by_name = {file["name"]: file for file in files}
    recording = by_name["chapter2.mp3"]
    mp3 = await system.http.get(recording["url"])
    properties = measure_mp3(mp3.content)
    assert mp3.headers["content-type"] == "audio/mpeg"
    assert properties is not None
    assert (properties.bit_rate, properties.duration_s) == (128, recording["duration"])
    chapter = pypdf.PdfReader(io.BytesIO((await system.http.get(by_name["chapter2.pdf"]["url"])).content))
    assert "#image(x) <b>bold</b> *stars*" in chapter.pages[0].extract_text().replace("\n", " ")
    book = pypdf.PdfReader(io.BytesIO((await system.http.get(by_name["full_nuclear.pdf"]["url"])).content))
    assert len(book.pages) == by_name["full_nuclear.pdf"]["pages"] == 18
    # The table of contents leads to each chapter.
    links = [link.get_object() for page in book.pages for link in page.get("/Annots", [])]
    assert len([link for link in links if "/Dest" in link or "/GoTo" in str(link.get("/A"))]) >= 16
    assert "Ana Ruiz" in book.pages[0].extract_text()
    manifest = (await system.http.get(by_name["full_nuclear.json"]["url"])).json()
    assert [document["chapter"]["title"] for document in manifest["documents"]] == [c.title for c in CHAPTERS]
    assert manifest["documents"][1]["audio"]["duration"] == recording["duration"]


def test_the_weights_are_the_phases() -> None:
    graph = nuclear_v2(msgspec.convert(REPORT_PARAMS, ReportParams))
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
    assert {percent: get_report_phase("processing", percent) for percent in at} == at
    assert (get_report_phase("queued", 0), get_report_phase("complete", 100)) == ("queued", "complete")


def test_calendar_facts() -> None:
    facts = calculate_calendar_facts(msgspec.convert(REPORT_PARAMS, ReportParams))
    assert (facts.weekday1, facts.weekday2, facts.path1, facts.years_apart) == ("Wednesday", "Sunday", 8, 6)
    without_dates = ReportParams(person1=Person(name="a", birth_date="2023-02-31"), person2=Person(name="b"))
    assert calculate_calendar_facts(without_dates) == msgspec.convert({}, type(facts))


@pytest.mark.parametrize(
    "body",
    [
        {}, {"type": "nuclear_v2"}, {"type": "nuclear_v2", "params": {}},
        {"type": "nuclear_v2", "params": {**REPORT_PARAMS, "systems": []}},
        {"type": "nuclear_v2", "params": {**REPORT_PARAMS, "person1": {"name": ""}}},
        {"type": "nuclear_v2", "params": {**REPORT_PARAMS, "person1": {"name": "x" * 201}}},
        {
            "type": "nuclear_v2",
            "params": {**REPORT_PARAMS, "person1": {"name": "x", "birthDate": "yesterday"}},
        },
        {"type": "nuclear_v2", "params": {**REPORT_PARAMS, "systems": ["x"] * 11}},
    ],
)  # fmt: skip
async def test_invalid_params_are_refused(reports_system: SystemHarness, body: dict[str, Any]) -> None:
    assert (await reports_system.create_user().post(f"{JOBS_PATH}/start", body)).status_code == 422


async def test_reports_belong_to_their_owners(reports_system: SystemHarness) -> None:
    ann, bob = reports_system.create_user(), reports_system.create_user()
    job = await start_report(ann)
    for path in (
        f"{JOBS_PATH}/{job}",
        f"{JOBS_PATH}/{job}/stream",
        f"{JOBS_PATH}/{uuid4()}",
        f"{JOBS_PATH}/none",
    ):
        assert (await bob.get(path)).status_code == 404
        assert (await reports_system.http.get(path)).status_code == 401
    assert (await bob.delete(f"{JOBS_PATH}/{job}")).status_code == 404
    assert (await bob.get(JOBS_PATH)).json()["jobs"] == []
    assert (await reports_system.http.post(f"{JOBS_PATH}/start", json={})).status_code == 401
    async with reports_system.db.transaction() as connection:
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
    assert make_token(ann.id)


async def test_other_jobs_are_served_by_the_api(reports_system: SystemHarness) -> None:
    """The report routes have the same paths as the API: job and caller decide which format is used."""
    ann, bob = reports_system.create_user(), reports_system.create_user()
    report = await start_report(ann)
    async with reports_system.db.connection() as connection:
        other = await connection.fetchval(
            "select holdfast.submit(jsonb_build_object('type', 'plain', 'owner', $1::text)) ->> 'id'", ann.id
        )
    body = (await ann.get(f"{JOBS_PATH}/{report}")).json()
    assert set(body) >= {"id", "status", "progress", "artifacts"}
    assert set(body["progress"]) == {"percent", "phase", "docsComplete", "docsTotal", "message"}
    plain = await ann.get(f"{JOBS_PATH}/{other}?wait=0")
    assert (plain.json()["status"], plain.json()["counts"]["total"]) == ("queued", 1)
    assert plain.headers["etag"]
    listed = {job["id"]: job for job in (await ann.get(f"{JOBS_PATH}?limit=10")).json()["jobs"]}
    assert set(listed) == {report, other}
    # Clients of the report contract send no query and receive reports only.
    assert [job["id"] for job in (await ann.get(JOBS_PATH)).json()["jobs"]] == [report]
    assert "docsTotal" in listed[report]["progress"]
    assert "counts" in listed[other]
    assert len((await ann.get(f"{JOBS_PATH}?type=plain")).json()["jobs"]) == 1
    assert (await ann.get(f"{JOBS_PATH}?limit=none")).status_code == 422
    assert (await ann.get(f"{JOBS_PATH}/{other}/stream")).status_code == 404
    # A service receives the format of the API, unless it names a user.
    service = bearer_headers(SERVICE_KEY)
    own = (await reports_system.http.get(f"{JOBS_PATH}/{report}", headers=service)).json()
    assert (own["status"], own["counts"]["total"]) == ("queued", 50)
    for user, status in ((ann, 200), (bob, 404)):
        acting = await reports_system.http.get(
            f"{JOBS_PATH}/{report}", headers={**service, "x-user-id": user.id}
        )
        assert acting.status_code == status
    assert (await ann.post(f"{JOBS_PATH}/start", {"type": "plain", "params": {}})).status_code == 403
    started = await reports_system.http.post(
        f"{JOBS_PATH}/start", headers=service, json={"type": "plain", "params": {}}
    )
    assert started.json()["created"] is True
    assert (await ann.delete(f"{JOBS_PATH}/{other}")).json() == {"cancelled": True, "status": "cancelled"}
    assert (await ann.delete(f"{JOBS_PATH}/{report}")).json()["status"] == "cancelled"


async def test_the_same_idempotency_key_returns_the_same_report(reports_system: SystemHarness) -> None:
    ann = reports_system.create_user()
    body = {"type": "nuclear_v2", "params": REPORT_PARAMS}
    headers = {**ann.headers, "idempotency-key": "once"}
    first, second = [
        await reports_system.http.post(f"{JOBS_PATH}/start", json=body, headers=headers) for _ in range(2)
    ]
    assert (first.status_code, second.status_code) == (202, 200)
    assert first.json()["id"] == second.json()["id"]


async def test_cancel_waiting_and_running_reports(reports_system: SystemHarness) -> None:
    ann = reports_system.create_user()
    waiting = await start_report(ann)
    assert (await ann.delete(f"{JOBS_PATH}/{waiting}")).json()["status"] == "cancelled"
    running = await start_report(ann)
    text_provider = HangingTextProvider()
    async with reports_system.run_worker(text_provider=text_provider):
        await wait_until(lambda: text_provider.call_count >= 3, within=timedelta(seconds=30))
        assert (await ann.delete(f"{JOBS_PATH}/{running}")).json()["status"] == "cancelled"
        assert (await ann.get(f"{JOBS_PATH}/{running}")).json()["status"] == "cancelled"
    assert (await ann.delete(f"{JOBS_PATH}/{running}")).json()["status"] == "cancelled"


def create_providers(server: ProviderServer) -> dict[str, Any]:
    text, speech = make_config(server, "text"), make_config(server, "speech")
    return {
        "text_provider": OpenAITextProvider(text, policy=LOOPBACK_POLICY),
        "speech_provider": OpenAISpeechProvider(speech, voice="v", policy=LOOPBACK_POLICY),
    }


async def test_a_rate_limit_pauses_all_tasks_of_the_provider(
    reports_system: SystemHarness, clock: Clock
) -> None:
    ann = reports_system.create_user()
    job = await start_report(ann)
    async with run_provider_server() as server:
        server.respond = lambda *_: (429, {"retry-after": "40"}, b"")
        async with reports_system.run_worker(**create_providers(server), concurrency=2):

            async def find_pause_s() -> Any:
                async with reports_system.db.connection() as connection:
                    return await connection.fetchval(
                        "select extract(epoch from max(paused_until) - holdfast.now())"
                        " from holdfast.limit_counters"
                        " where key = 'text provider' and paused_until > holdfast.now()"
                    )

            assert 20 < float(await wait_until(find_pause_s, within=timedelta(seconds=30))) <= 40
            request_count = len(server.requests)
            assert request_count <= 3  # requests that were already sent before the first 429
        server.respond = _respond_briefly
        await clock.advance(timedelta(seconds=45))
        # The clock of the first worker's process has not been advanced, so another one continues.
        async with reports_system.run_worker(**create_providers(server), concurrency=2):
            report = await wait_for_report(ann, job)
    assert report["status"] == "complete"
    async with reports_system.db.connection() as connection:
        charged = await connection.fetchval("select count(*) from holdfast.attempts where outcome = 'failed'")
    assert charged == 0


def _respond_briefly(path: str, body: Any) -> Any:
    if path.endswith("completions"):
        return make_chat_response("A short chapter.")
    return respond_by_default(path, {**body, "input": "short"})


@pytest.mark.parametrize("step", ["text", "speech"])
async def test_failed_provider_calls_are_tried_three_times(
    reports_system: SystemHarness, clock: Clock, step: str
) -> None:
    ann = reports_system.create_user()
    job = await start_report(ann)
    async with run_provider_server() as server:
        server.respond = lambda *_: (500, {}, b"the secret prompt")
        providers = create_providers(server)
        if step == "speech":
            providers["text_provider"] = OneSentenceTextProvider()
        async with reports_system.run_worker(**providers):

            async def find_failed_report() -> Any:
                await clock.advance(timedelta(seconds=10))
                report = (await ann.get(f"{JOBS_PATH}/{job}")).json()
                return report if report["status"] == "failed" else None

            report = await wait_until(find_failed_report, within=timedelta(seconds=60))
    assert report["error"]
    assert "secret" not in str(report)
    async with reports_system.db.connection() as connection:
        attempts = await connection.fetchval(
            "select max(attempts) from public.job_tasks where job_id = $1", job
        )
    assert attempts == 3


async def test_an_external_worker_completes_a_report_in_sql(reports_system: SystemHarness) -> None:
    ann = reports_system.create_user()
    job = await start_report(ann)
    async with reports_system.db.connection() as sql:
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
                arguments = msgspec.json.decode(task["input"])
                if task["task_type"] in ("pdf_generation", "audio_generation"):
                    assert arguments["text"]["text"] == f"Words about {arguments['slug']}."
                with pytest.raises(Exception, match="does not hold the lease"):
                    await sql.execute("select public.complete_task($1, 'script-2', null)", task["id"])
                output = _make_output(task["task_type"], arguments)
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
        assert (await ann.get(f"{JOBS_PATH}/{job}")).json()["status"] == "complete"
        assert await sql.fetchval("select public.reclaim_stale_tasks()") == 0


def _make_output(task_type: str, arguments: dict[str, Any]) -> Any:
    if task_type == "calculating":
        return {"years_apart": 6}
    if task_type == "text_generation":
        text = f"Words about {arguments['slug']}."
        return {"slug": arguments["slug"], "text": text, "by": "a script", "language": "en"}
    if task_type == "finalizing":
        assert len(arguments["texts"]) == len(arguments["pdfs"]) == len(arguments["recordings"]) == 16
        return {"documents": 16}
    return {"name": f"{arguments['slug']}.bin", "size": 1}


async def test_an_external_worker_keeps_its_task_with_a_heartbeat_per_minute(
    reports_system: SystemHarness, clock: Clock
) -> None:
    job = await start_report(reports_system.create_user())
    async with reports_system.db.connection() as sql:
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
        report = await sql.fetchrow("select * from public.jobs where id = $1", job)
        assert {"id", "user_id", "type", "params", "status", "progress"} <= set((report or {}).keys())
        assert msgspec.json.decode((report or {})["progress"])["phase"] == "text"


async def test_an_external_worker_fails_and_dies(reports_system: SystemHarness, clock: Clock) -> None:
    ann = reports_system.create_user()
    job = await start_report(ann)
    async with reports_system.db.connection() as sql:
        task = await sql.fetchval("select id from public.claim_tasks('script-1', 1, array['calculating'])")
        await sql.execute("select public.fail_task($1, 'script-1', 'no calendar')", task)
        row = await sql.fetchrow("select status, attempts, error from public.job_tasks where id = $1", task)
        assert dict(row or {}) == {"status": "pending", "attempts": 1, "error": "no calendar"}
        await clock.advance(timedelta(seconds=30))
        again = await sql.fetch("select * from public.claim_tasks('script-2', 1, array['calculating'])")
        assert [row["id"] for row in again] == [task]
        await clock.advance(timedelta(seconds=180))  # the worker dies
        assert await sql.fetchval("select public.reclaim_stale_tasks()") == 1
        with pytest.raises(Exception, match="does not hold the lease"):
            await sql.execute("select public.complete_task($1, 'script-2', null)", task)
    assert (
        await reports_system.http.get(f"/api/jobs/{job}", headers=bearer_headers(SERVICE_KEY))
    ).status_code == 200
