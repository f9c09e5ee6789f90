"""The API inside other frameworks: the examples as they stand, each on a port, from start to event stream."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import httpx
import pytest
from books import KEY
from callers import ISSUER, SECRET, bearer, served, token, watching

from holdfast.settings import Secret

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ANN = bearer(token("ann"))


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
async def test_an_example_serves(
    url: Secret, monkeypatch: pytest.MonkeyPatch, name: str, prefix: str
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", url.reveal())
    monkeypatch.setenv("HOLDFAST_SERVICE_KEY", KEY)
    monkeypatch.setenv("HOLDFAST_JWT_SECRET", SECRET)
    monkeypatch.setenv("HOLDFAST_JWT_ISSUER", ISSUER)
    for module in ("api_reports", name):
        sys.modules.pop(module, None)
    app = importlib.import_module(name).app
    async with served(app) as base, httpx.AsyncClient(base_url=base) as web:
        if prefix:
            assert "home" in (await web.get("/")).text
        assert (await web.get(f"{prefix}/readyz")).json() == {"status": "ready"}
        body = {"type": "report", "params": {"pages": ["a", "b"]}}
        made = await web.post(f"{prefix}/api/jobs/start", json=body, headers=ANN)
        assert made.status_code == 202, made.text
        assert made.headers["location"] == f"{prefix}/api/jobs/{made.json()['id']}"
        assert (await web.get(made.headers["location"], headers=ANN)).json()["owner"] == "ann"
        assert (await web.get(made.headers["location"])).status_code == 401
        described = (await web.get(f"{prefix}/api/openapi.json")).json()
        assert described["servers"] == [{"url": prefix or "/"}]
        async with watching(web, f"{made.headers['location']}/events", ANN) as stream:
            frame = await stream.next()
            assert frame is not None
            assert (frame.event, frame.data["total"]) == ("snapshot", 3)
            await web.delete(made.headers["location"], headers=ANN)
            assert (await stream.until("end"))[-1].data["state"] == "cancelled"
    sys.modules.pop("api_reports", None)
