"""pip install 'holdfast[testing]' httpx && pytest: the web application with the real engine."""

import httpx
import pytest
import tasks
import web

from holdfast.testing import Holdfast


@pytest.fixture(scope="session")
def hf_prepare() -> str:
    return web.SCHEMA  # the tables of the application, in the database of every test


@pytest.fixture
def http(hf: Holdfast) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(web.app), base_url="http://test")


async def test_a_signup_sends_one_mail(hf: Holdfast, http: httpx.AsyncClient) -> None:
    response = await http.post("/members", json={"email": "ann@example.com"})
    assert response.status_code == 202
    hf.assert_submitted(tasks.welcome_member, member=response.json()["member"], count=1)
    await hf.drain()
    job = (await http.get(response.json()["status"])).json()
    assert (job["status"], job["output"]) == ("succeeded", "ann@example.com")


async def test_a_refused_signup_submits_no_job(hf: Holdfast, http: httpx.AsyncClient) -> None:
    assert (await http.post("/members", json={"email": "ann@example.com"})).status_code == 202
    assert (await http.post("/members", json={"email": "ann@example.com"})).status_code == 409
    hf.assert_submitted(tasks.welcome_member, count=1)


async def test_a_failed_mail_is_sent_again_later(
    hf: Holdfast, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[str] = []

    async def send_mail(to: str, text: str, *, idempotency_key: str) -> None:
        attempts.append(idempotency_key)
        if len(attempts) == 1:
            raise ConnectionError("The mail server does not answer.")

    monkeypatch.setattr(tasks, "send_mail", send_mail)
    await http.post("/members", json={"email": "ann@example.com"})
    result = await hf.drain(until=3600)
    assert [attempt.outcome for attempt in result.attempts] == ["failed", "succeeded"]
    assert len(set(attempts)) == 1  # the provider can tell that it is the same mail


async def test_an_unknown_job_is_404(http: httpx.AsyncClient) -> None:
    assert (await http.get("/jobs/00000000-0000-0000-0000-000000000000")).status_code == 404
