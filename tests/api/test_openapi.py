"""The OpenAPI document is valid and complete, and its page loads nothing from other sites."""

from __future__ import annotations

import re
from typing import Any

import httpx
import msgspec
from book_app import PUBLIC_PATHS
from openapi_spec_validator import validate
from starlette.applications import Starlette
from starlette.routing import Route

from holdfast.server.api.openapi import build_openapi_from_routes, list_declared_operations
from holdfast.server.api.operations import find_declared_operation
from holdfast.server.api.request_examples import REQUEST_BODY_EXAMPLES


async def test_the_document_is_valid_openapi(api: httpx.AsyncClient) -> None:
    document = (await api.get("/api/openapi.json")).json()
    assert document["openapi"] == "3.1.0"
    validate(document)
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)


async def test_every_request_body_has_a_valid_example(app: Starlette) -> None:
    document = build_openapi_from_routes(app.routes)
    bodies = {
        (path, method): operation.body
        for path, method, operation in list_declared_operations(app.routes)
        if operation.body is not None and operation.request_media_type == "application/json"
    }
    used: set[str] = set()
    for (path, method), body_type in bodies.items():
        operation = document["paths"][path][method]
        example = operation["requestBody"]["content"]["application/json"]["example"]
        msgspec.json.decode(msgspec.json.encode(example), type=body_type)
        used.add(operation["operationId"])
    assert used == set(REQUEST_BODY_EXAMPLES), "an example belongs to no operation"


async def test_every_route_is_declared_and_therefore_checked(app: Starlette) -> None:
    def list_routes(routes: Any) -> list[Route]:
        return [r for r in routes if isinstance(r, Route)]

    routes_with_endpoints = list_routes(app.routes)
    assert len(routes_with_endpoints) > 50
    assert [
        route.path for route in routes_with_endpoints if find_declared_operation(route.endpoint) is None
    ] == []


async def test_only_the_public_paths_need_no_token(api: httpx.AsyncClient) -> None:
    document = (await api.get("/api/openapi.json")).json()
    without = {
        (method, path)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if "security" not in operation
    }
    # Signing out works without a session too.
    assert without == {("get", path) for path in PUBLIC_PATHS} | {("delete", "/api/session")}


async def test_the_docs_page_loads_nothing_from_other_sites(api: httpx.AsyncClient) -> None:
    page = await api.get("/api/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert not re.search(r"(src|href)=['\"]?(https?:)?//", page.text)
    assert "<script" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "/api/jobs/start" in page.text
