"""Generate docs/reference/http.md from the OpenAPI document: every route with its parameters and responses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.server.api.app import build_openapi_document

HTTP_METHODS = ("get", "post", "put", "patch", "delete")
PAGE_INTRODUCTION = """\
All routes of the HTTP API, by topic. `/api/docs` of a running server also shows request bodies and examples, and `/api/openapi.json` is the
OpenAPI document. Errors are `application/problem+json`. Every route can return 401, 403, 408, 413, 415, 422 and 429, so the table omits them.
Send a token or a service key with every request, except to routes marked "no token".
"""
COMMON_ERROR_STATUSES = {"401", "403", "408", "413", "415", "422", "429"}


def build_page() -> str:
    document = build_openapi_document()
    lines = ["# HTTP", "{note}", PAGE_INTRODUCTION]
    for tag in (each["name"] for each in document["tags"]):
        lines += [
            f"## {tag[0].upper() + tag[1:]}",
            "",
            "| route | description | parameters | responses |",
            "|---|---|---|---|",
        ]
        lines += [_format_table_row(*operation) for operation in _iterate_operations(document, tag)]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _iterate_operations(document: dict[str, Any], tag: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method in HTTP_METHODS:
            if method in methods and tag in methods[method]["tags"]:
                yield method, path, methods[method]


def _format_table_row(method: str, path: str, operation: dict[str, Any]) -> str:
    parameters = [f"`{each['name']}`" for each in operation.get("parameters", ()) if each["in"] != "path"]
    parameters += ["body"] if "requestBody" in operation else []
    statuses = ", ".join(status for status in operation["responses"] if status not in COMMON_ERROR_STATUSES)
    summary = operation["summary"] + ("" if operation.get("security") else " (no token)")
    return f"| `{method.upper()} {path}` | {summary} | {', '.join(parameters)} | {statuses} |"
