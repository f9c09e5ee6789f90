"""The API mounted in other frameworks: each example starts a job and streams its events."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import httpx
import pytest
from api_clients import ISSUER, SECRET, bearer_headers, make_token, open_event_stream, serve_app
from book_app import SERVICE_KEY

from holdfast.settings import Secret

EXAMPLES_FOLDER = Path(__file__).resolve().parents[2] / "examples"
ANN = bearer_headers(make_token("ann"))


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("api_reports", ""),
        ("api_starlette", "/tasks"),
        ("api_fastapi", "/tasks"),
        ("api_litestar", "/tasks"),
        ("api_django", "/tasks"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_an_example_application_serves_jobs_and_streams(
    url: Secret, monkeypatch: pytest.MonkeyPatch, name: str, prefix: str
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES_FOLDER))
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", url.reveal())
    monkeypatch.setenv("HOLDFAST_SERVICE_KEY", SERVICE_KEY)
    monkeypatch.setenv("HOLDFAST_JWT_SECRET", SECRET)
    monkeypatch.setenv("HOLDFAST_JWT_ISSUER", ISSUER)
    for module in ("api_reports", name):
        sys.modules.pop(module, None)
    app = importlib.import_module(name).app
    async with serve_app(app) as base, httpx.AsyncClient(base_url=base) as web:
        if prefix:
            assert "home" in (await web.get("/")).text
        assert (await web.get(f"{prefix}/readyz")).json() == {"status": "ready"}
        body = {"type": "report", "params": {"pages": ["a", "b"]}}
        created = await web.post(f"{prefix}/api/jobs/start", json=body, headers=ANN)
        assert created.status_code == 202, created.text
        assert created.headers["location"] == f"{prefix}/api/jobs/{created.json()['id']}"
        assert (await web.get(created.headers["location"], headers=ANN)).json()["owner"] == "ann"
        assert (await web.get(created.headers["location"])).status_code == 401
        described = (await web.get(f"{prefix}/api/openapi.json")).json()
        assert described["servers"] == [{"url": prefix or "/"}]
        async with open_event_stream(web, f"{created.headers['location']}/events", ANN) as stream:
            frame = await stream.read_next()
            assert frame is not None
            assert (frame.event, frame.data["total"]) == ("snapshot", 3)
            await web.delete(created.headers["location"], headers=ANN)
            assert (await stream.read_until("end"))[-1].data["status"] == "cancelled"
    sys.modules.pop("api_reports", None)
