"""The page docs/reference/http.md: every route with what it takes and answers, from the OpenAPI description."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.server.api.app import build_openapi_document

METHODS = ("get", "post", "put", "patch", "delete")
INTRO = """\
Every route, by what it is about. `/api/docs` of a running server shows the same with bodies and examples, `/api/openapi.json` is for programs.
Errors are `application/problem+json`; 401, 403, 413, 422 and 429 can come from any route and are left out here. Routes without a token say so.
"""
ANYWHERE = {"401", "403", "408", "413", "415", "422", "429"}


def page() -> str:
    found = build_openapi_document()
    lines = ["# HTTP", "{note}", INTRO]
    for tag in (each["name"] for each in found["tags"]):
        lines += [f"## {tag}", "", "| route | what it does | takes | answers |", "|---|---|---|---|"]
        lines += [_row(*each) for each in _operations(found, tag)]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _operations(found: dict[str, Any], tag: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in found["paths"].items():
        for method in METHODS:
            if method in methods and tag in methods[method]["tags"]:
                yield method, path, methods[method]


def _row(method: str, path: str, operation: dict[str, Any]) -> str:
    takes = [f"`{each['name']}`" for each in operation.get("parameters", ()) if each["in"] != "path"]
    takes += ["a body"] if "requestBody" in operation else []
    answers = ", ".join(each for each in operation["responses"] if each not in ANYWHERE)
    summary = operation["summary"] + ("" if operation.get("security") else " (no token)")
    return f"| `{method.upper()} {path}` | {summary} | {', '.join(takes)} | {answers} |"
