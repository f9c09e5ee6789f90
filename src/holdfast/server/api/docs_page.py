"""Serve the OpenAPI document as an HTML page, without scripts and without files from other sites."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from holdfast.model import Json
from holdfast.server.api.openapi import build_openapi_from_routes
from holdfast.server.api.operations import api_operation

DOCS_PAGE_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
_DOCS_PAGE_STYLESHEET = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #1c1f23; background: #fff }
code, pre { font: 13px/1.5 ui-monospace, monospace }
pre { background: #f4f5f7; padding: .75rem; overflow-x: auto; border-radius: 6px }
details { border: 1px solid #d8dce2; border-radius: 6px; margin: .4rem 0; padding: .4rem .75rem }
summary { cursor: pointer }
b { display: inline-block; min-width: 4.5rem }
small { color: #57606a }
@media (prefers-color-scheme: dark) {
  body { color: #e6e8eb; background: #14171a } pre { background: #1f2429 } details { border-color: #373e47 }
  small { color: #9aa4af }
}
"""


@api_operation("Read the API documentation", tag="documentation", access="public", media_type="text/html")
async def serve_docs_page(request: Request) -> Response:
    document = build_openapi_from_routes(request.app.routes, server=request.scope.get("root_path") or "/")
    return HTMLResponse(
        render_docs_page(document), headers={"Content-Security-Policy": DOCS_PAGE_SECURITY_POLICY}
    )


def render_docs_page(document: dict[str, Json]) -> str:
    """Render an OpenAPI document as one HTML page."""
    sections: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            sections.setdefault(operation["tags"][0], []).append(_render_operation(path, method, operation))
    body = "".join(
        f'<h2 id="{_build_tag_anchor(tag)}">{escape(tag)}</h2>{"".join(parts)}'
        for tag, parts in sections.items()
    )
    index = " · ".join(f'<a href="#{_build_tag_anchor(tag)}">{escape(tag)}</a>' for tag in sections)
    schemas = "".join(
        f"<details><summary><code>{escape(name)}</code></summary>{_render_json(schema)}</details>"
        for name, schema in document["components"]["schemas"].items()
    )
    info = document["info"]
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{info['title']} API</title><style>{_DOCS_PAGE_STYLESHEET}</style>"
        f"<h1>{info['title']} API <small>{info['version']}</small></h1>"
        f"<p>{escape(info['description'])}</p><p>{index} · <a href=#schemas>schemas</a> · "
        f"<a href=openapi.json>openapi.json</a></p>{body}<h2 id=schemas>schemas</h2>{schemas}</html>"
    )


def _build_tag_anchor(tag: str) -> str:
    return escape(tag.replace(" ", "-"))


def _render_operation(path: str, method: str, operation: dict[str, Json]) -> str:
    access = operation.get("x-access", "anyone")
    if "x-scope" in operation:
        access += f", scope {operation['x-scope']}"
    parts = [f"<p><small>{escape(access)}</small></p>"]
    if "description" in operation:
        parts.append(f"<p>{escape(operation['description'])}</p>")
    if operation.get("parameters"):
        parts.append("<h4>Parameters</h4>" + _render_json(operation["parameters"]))
    if "requestBody" in operation:
        parts.append("<h4>Request body</h4>" + _render_json(operation["requestBody"]["content"]))
    parts.append("<h4>Responses</h4>" + _render_json(operation["responses"]))
    head = f"<b>{method.upper()}</b> <code>{escape(path)}</code> {escape(operation['summary'])}"
    return f"<details><summary>{head}</summary>{''.join(parts)}</details>"


def _render_json(value: Json) -> str:
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return f"<pre>{escape(text)}</pre>"


def build_docs_page_routes() -> Sequence[BaseRoute]:
    return [Route("/api/docs", serve_docs_page, methods=["GET"])]
