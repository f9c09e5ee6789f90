"""The example of the guide: tasks that reach URLs of users, and programs behind the proxy."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest
from web_servers import respond, run_web_server

from holdfast import Reject

EXAMPLE_FILE = Path(__file__).parents[2] / "examples" / "web_requests.py"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    spec = importlib.util.spec_from_file_location("web_requests", EXAMPLE_FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_the_example_reaches_allowed_servers_only(
    example: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = respond(b"<html><title>A page</title></html>", Content_Type="text/html")
    async with run_web_server(page) as allowed, run_web_server(page) as private:
        monkeypatch.setenv("HOLDFAST_EGRESS_ALLOW", allowed.authority)
        assert await example.fetch_title.function(allowed.url) == "A page"
        with pytest.raises(Reject, match="public internet"):
            await example.fetch_title.function(private.url)
        if shutil.which("curl"):
            assert "A page" in await example.run_curl.function(allowed.url)
            with pytest.raises(Reject, match="public internet"):
                await example.run_curl.function(private.url)
    assert private.connections == 0
