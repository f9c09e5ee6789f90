"""Results of exports and reports live as long as their files, whatever the history of the engine keeps."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from stub_text_providers import HangingTextProvider, OneSentenceTextProvider
from system_harness import SystemHarness, SystemUser

from holdfast import Client, Reject
from holdfast.systems.exports.queries import delete_expired_exports
from holdfast.systems.providers import SpeechAudio, UsageAccount
from holdfast.systems.reports.stored_reports import delete_old_reports
from holdfast.testing import Clock, wait_until

REPORT_PARAMS = {"person1": {"name": "Ana"}, "person2": {"name": "Bo"}, "systems": ["western"]}
FORGET_QUERIES = (
    "delete from holdfast.history",
    "delete from holdfast.tasks",
    "delete from holdfast.jobs",
    "delete from holdfast.events",
)


class SilentSpeechProvider:
    """A speech provider that fails for the chapter `Hunger` while `broken` is set."""

    limit_key = "speech:silent"

    def __init__(self) -> None:
        self.broken = False

    async def close(self) -> None:
        pass

    async def synthesize_speech(self, text: str, language: str, *, account: UsageAccount) -> SpeechAudio:
        del language, account
        if self.broken and "Hunger" in text.partition("\n")[0]:
            raise Reject("The speech provider rejected the request.")
        return SpeechAudio(b"\xff\xfb\x90\x64" + bytes(413), 1.5, 128, "silent")


async def start_report(user: SystemUser) -> str:
    response = await user.post("/api/jobs/start", {"type": "nuclear_v2", "params": REPORT_PARAMS})
    assert response.status_code == 202, response.text
    return str(response.json()["id"])


async def wait_for_report(user: SystemUser, report_id: str, status: str) -> dict[str, Any]:
    async def find_ended_report() -> dict[str, Any] | None:
        report: dict[str, Any] = (await user.get(f"/api/jobs/{report_id}")).json()
        return report if report["status"] == status else None

    report: dict[str, Any] = await wait_until(find_ended_report, within=timedelta(seconds=120))
    return report


async def forget_all_jobs(system: SystemHarness) -> None:
    async with system.db.connection() as connection:
        for query in FORGET_QUERIES:
            await connection.execute(query)


@pytest.mark.timeout(240)
async def test_a_complete_report_outlives_its_job(reports_system: SystemHarness, clock: Clock) -> None:
    ann, bob = reports_system.create_user(), reports_system.create_user()
    report_id = await start_report(ann)
    speech = SilentSpeechProvider()
    async with reports_system.run_worker(text_provider=OneSentenceTextProvider(), speech_provider=speech):
        before = await wait_for_report(ann, report_id, "complete")
    assert before["progress"] == {
        "percent": 100, "phase": "complete", "docsComplete": 16, "docsTotal": 16, "message": "Complete",
    }  # fmt: skip
    await forget_all_jobs(reports_system)
    await clock.advance(timedelta(days=30))
    after = (await ann.get(f"/api/jobs/{report_id}")).json()
    assert (after["status"], after["progress"]) == ("complete", before["progress"])
    assert len(after["artifacts"]) == len(before["artifacts"]) == 50
    for path in ("/api/jobs", "/api/jobs?type=nuclear_v2"):
        (listed,) = (await ann.get(path)).json()["jobs"]
        assert (listed["id"], listed["progress"]) == (report_id, before["progress"])
    stream = await ann.get(f"/api/jobs/{report_id}/stream")
    assert "event: complete" in stream.text
    assert (await ann.delete(f"/api/jobs/{report_id}")).json()["cancelled"] is False
    assert (await bob.get(f"/api/jobs/{report_id}")).status_code == 404
    assert (await bob.get("/api/jobs")).json()["jobs"] == []
    async with Client(reports_system.db.url.reveal(), settings=reports_system.db.settings) as client:
        assert await delete_old_reports(client, "public", timedelta(days=7)) == 0  # its files are there
        await clock.advance(timedelta(days=61))
        assert (await ann.get(f"/api/jobs/{report_id}")).json()["artifacts"] == []
        assert await delete_old_reports(client, "public", timedelta(days=90)) == 1
    assert (await ann.get(f"/api/jobs/{report_id}")).status_code == 404


@pytest.mark.timeout(240)
async def test_failed_and_cancelled_reports_say_what_has_succeeded(reports_system: SystemHarness) -> None:
    ann = reports_system.create_user()
    failed = await start_report(ann)
    speech = SilentSpeechProvider()
    speech.broken = True
    async with reports_system.run_worker(text_provider=OneSentenceTextProvider(), speech_provider=speech):
        report = await wait_for_report(ann, failed, "failed")
    # All but one recording (1.6 %) and the book (5 %).
    assert report["progress"] == {
        "percent": 93.4, "phase": "audio", "docsComplete": 15, "docsTotal": 16, "message": "Failed",
    }  # fmt: skip
    assert report["error"]
    speech.broken = False
    retried = await ann.post(f"/api/jobs/{failed}/retry", {})
    assert retried.status_code == 200, retried.text
    async with reports_system.run_worker(text_provider=HangingTextProvider(), speech_provider=speech):
        repaired = await wait_for_report(ann, failed, "complete")  # no text is written again
    assert len(repaired["artifacts"]) == 50
    assert repaired["progress"]["percent"] == 100
    running = await start_report(ann)
    text = HangingTextProvider()
    async with reports_system.run_worker(text_provider=text, speech_provider=speech):
        await wait_until(lambda: text.call_count >= 1, within=timedelta(seconds=60))
        await ann.delete(f"/api/jobs/{running}")
    expected = {
        "percent": 10, "phase": "text", "docsComplete": 0, "docsTotal": 16, "message": "Cancelled",
    }  # fmt: skip
    assert (await ann.get(f"/api/jobs/{running}")).json()["progress"] == expected
    stream = await ann.get(f"/api/jobs/{running}/stream")
    assert '"percent":10' in stream.text.partition("event: cancelled")[2]
    await forget_all_jobs(reports_system)
    jobs = {job["id"]: job for job in (await ann.get("/api/jobs")).json()["jobs"]}
    assert (jobs[failed]["status"], jobs[failed]["progress"]) == ("complete", repaired["progress"])
    assert (await ann.post(f"/api/jobs/{failed}/retry", {})).status_code == 410
    assert (jobs[running]["status"], jobs[running]["progress"]) == ("cancelled", expected)


async def test_exports_keep_their_end_when_the_engine_forgets_them(
    exports_system: SystemHarness, clock: Clock
) -> None:
    ann = exports_system.create_user()
    document = await ann.add_document()
    cancelled = await ann.start_export(document, templateSlug="classic")
    await ann.delete(f"/api/v1/export/job/{cancelled}")
    async with exports_system.db.connection() as connection:
        broken = await connection.fetchval(
            "insert into documents (user_id, title, data) values ($1, 'x', '{}') returning id", ann.id
        )
    failed, completed = await ann.start_export(str(broken)), await ann.start_export(document)
    async with exports_system.run_worker():
        ended = {job: await ann.wait_for_export(job) for job in (cancelled, failed, completed)}
    await forget_all_jobs(exports_system)
    for job, export in ended.items():
        kept = (await ann.get(f"/api/v1/export/job/{job}")).json()
        assert {**kept, "resultUrl": None} == {**export, "resultUrl": None}
        assert (kept["resultUrl"] is None) == (job != completed)
    assert {export["status"] for export in ended.values()} == {"cancelled", "failed", "completed"}
    await clock.advance(timedelta(days=8))
    async with exports_system.run_worker() as state:
        assert await delete_expired_exports(state.client, "public") == 1
    kept = (await ann.get(f"/api/v1/export/job/{completed}")).json()
    assert (kept["status"], kept["progress"], kept["resultUrl"]) == ("completed", 100, None)
    assert (await ann.get(f"/api/v1/export/download/{completed}")).status_code == 410
    assert (await ann.get(f"/api/v1/export/download/{failed}")).status_code == 404
