"""The description is valid, complete and readable without anything from elsewhere."""

from __future__ import annotations

import re
from typing import Any

import httpx
from books import OPEN
from openapi_spec_validator import validate
from starlette.applications import Starlette
from starlette.routing import Route

from holdfast.api.operations import described


async def test_the_description_is_valid_openapi(api: httpx.AsyncClient) -> None:
    document = (await api.get("/api/openapi.json")).json()
    assert document["openapi"] == "3.1.0"
    validate(document)
    operations = [said for methods in document["paths"].values() for said in methods.values()]
    assert len({said["operationId"] for said in operations}) == len(operations)
    examples = [b for said in operations for b in said.get("requestBody", {}).get("content", {}).values()]
    assert any("example" in each for each in examples)


async def test_every_route_is_described_and_so_guarded(app: Starlette) -> None:
    def leaves(routes: Any) -> list[Route]:
        return [r for r in routes if isinstance(r, Route)]

    found = leaves(app.routes)
    assert len(found) > 50
    assert [route.path for route in found if described(route.endpoint) is None] == []


async def test_only_these_are_open_to_strangers(api: httpx.AsyncClient) -> None:
    document = (await api.get("/api/openapi.json")).json()
    without = {
        path
        for path, methods in document["paths"].items()
        for said in methods.values()
        if "security" not in said
    }
    assert without == OPEN


async def test_the_page_needs_nothing_from_elsewhere(api: httpx.AsyncClient) -> None:
    page = await api.get("/api/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert not re.search(r"(src|href)=['\"]?(https?:)?//", page.text)
    assert "<script" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "/api/jobs/start" in page.text
