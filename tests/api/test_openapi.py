"""The description is valid, complete and readable without anything from elsewhere."""

from __future__ import annotations

import re
from typing import Any

import httpx
import msgspec
from books import OPEN
from openapi_spec_validator import validate
from starlette.applications import Starlette
from starlette.routing import Route

from holdfast.server.api.request_examples import EXAMPLES
from holdfast.server.api.openapi import build_document, list_operations
from holdfast.server.api.operations import get_operation


async def test_the_description_is_valid_openapi(api: httpx.AsyncClient) -> None:
    document = (await api.get("/api/openapi.json")).json()
    assert document["openapi"] == "3.1.0"
    validate(document)
    operations = [said for methods in document["paths"].values() for said in methods.values()]
    assert len({said["operationId"] for said in operations}) == len(operations)


async def test_every_body_has_an_example_that_fits(app: Starlette) -> None:
    document = build_document(app.routes)
    bodies = {
        (path, method): said.body
        for path, method, said in list_operations(app.routes)
        if said.body is not None and said.request_media_type == "application/json"
    }
    used: set[str] = set()
    for (path, method), shape in bodies.items():
        said = document["paths"][path][method]
        example = said["requestBody"]["content"]["application/json"]["example"]
        msgspec.json.decode(msgspec.json.encode(example), type=shape)
        used.add(said["operationId"])
    assert used == set(EXAMPLES), "an example for a route that is not there"


async def test_every_route_is_described_and_so_guarded(app: Starlette) -> None:
    def leaves(routes: Any) -> list[Route]:
        return [r for r in routes if isinstance(r, Route)]

    found = leaves(app.routes)
    assert len(found) > 50
    assert [route.path for route in found if get_operation(route.endpoint) is None] == []


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
