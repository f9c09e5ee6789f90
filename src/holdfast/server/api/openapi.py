"""The OpenAPI 3.1 description, made from what the endpoints say about themselves, and a page to read it.

The page is plain HTML made here: it needs no script and nothing from anywhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from holdfast.model import Json
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.operations import ApiOperation, api_operation, get_operation
from holdfast.server.api.problem_responses import ProblemDetails
from holdfast.server.api.request_examples import EXAMPLES
from holdfast.version import __version__

REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"{([a-z_]+)(?::[a-z]+)?}")
_IDS = {"id", "task", "batch", "job"}
_ABOUT = """Background work on PostgreSQL. Users send a signed token, services a key, both as a bearer token.
Errors are application/problem+json; those of /rest/v1 have PostgREST's shape."""

_STYLE = """
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


def list_operations(routes: Iterable[BaseRoute], prefix: str = "") -> list[tuple[str, str, ApiOperation]]:
    """(path, method, operation) of every endpoint that says something about itself."""
    found: list[tuple[str, str, ApiOperation]] = []
    for route in routes:
        if isinstance(route, Mount):
            found += list_operations(route.routes or (), prefix + route.path)
        elif isinstance(route, Route):
            said = get_operation(route.endpoint)
            if said is not None:
                path = _PARAMETER.sub(r"{\1}", prefix + route.path)
                found += [(path, m.lower(), said) for m in sorted(route.methods or ()) if m != "HEAD"]
    return found


def build_document(routes: Iterable[BaseRoute], *, server: str = "/") -> dict[str, Json]:
    every = list_operations(routes)
    shapes = [shape for *_, said in every for shape in (said.body, said.query, said.response)]
    wanted = [*(shape for shape in shapes if shape not in (None, bytes)), ProblemDetails]
    schemas, components = msgspec.json.schema_components(wanted, ref_template=REF)
    # The same order; shapes such as dict[...] cannot be keys.
    by_shape = {id(shape): schema for shape, schema in zip(wanted, schemas, strict=True)}
    paths: dict[str, dict[str, Json]] = {}
    for path, method, said in every:
        paths.setdefault(path, {})[method] = _operation(path, method, said, by_shape, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": __version__, "description": _ABOUT},
        "servers": [{"url": server}],
        "tags": [{"name": name} for name in dict.fromkeys(said.tag for *_, said in every)],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT or service key"},
                "apikey": {"type": "apiKey", "in": "header", "name": "apikey"},
            },
        },
    }


def _operation(
    path: str, method: str, said: ApiOperation, by_shape: dict[int, Json], components: dict[str, Json]
) -> dict[str, Json]:
    parameters = [_path_parameter(name) for name in _PARAMETER.findall(path)]
    if said.query is not None:
        parameters += _query(by_shape[id(said.query)], components)
    parameters += [
        {"name": name, "in": "header", "schema": {"type": "string"}} for name in said.request_headers
    ]
    made: dict[str, Json] = {
        "summary": said.summary,
        "operationId": _id(path, method),
        "tags": [said.tag],
        "responses": _answers(path, said, by_shape),
    }
    if said.access != "anyone" or said.scope is not None:
        made["security"] = [{"token": []}, {"apikey": []}]
        made["x-access"] = said.access if said.access != "anyone" else "user"
        if said.scope is not None:
            made["x-scope"] = said.scope
    if parameters:
        made["parameters"] = parameters
    if said.body is bytes:
        made["requestBody"] = {
            "content": {said.request_media_type: {"schema": {"type": "string", "format": "binary"}}}
        }
    elif said.body is not None:
        content: dict[str, Json] = {"schema": by_shape[id(said.body)]}
        example = EXAMPLES.get(_id(path, method), said.example)
        if example is not None:
            content["example"] = example
        made["requestBody"] = {
            "content": {said.request_media_type: content},
            "required": _required(content, components),
        }
    return made


def _required(content: dict[str, Json], components: dict[str, Json]) -> bool:
    schema = _resolved(content["schema"], components)
    return bool(schema.get("required"))


def _resolved(schema: Json, components: dict[str, Json]) -> dict[str, Json]:
    reference = schema.get("$ref")
    found: dict[str, Json] = components[reference.rpartition("/")[2]] if reference else schema
    return found


def _path_parameter(name: str) -> dict[str, Json]:
    kind: dict[str, Json] = {"type": "string", "minLength": 1, "maxLength": 200}
    if name in _IDS:
        kind = {"type": "string", "format": "uuid"}
    return {"name": name, "in": "path", "required": True, "schema": kind}


def _query(schema: Json, components: dict[str, Json]) -> list[dict[str, Json]]:
    shape = _resolved(schema, components)
    found: list[dict[str, Json]] = []
    for name, kind in shape.get("properties", {}).items():
        plain = _without_null(kind)
        found.append({"name": name, "in": "query", "required": name in shape["required"], "schema": plain})
    return found


def _without_null(kind: dict[str, Json]) -> dict[str, Json]:
    """A query has no null: what may be left out is left out."""
    choices = [each for each in kind.get("anyOf", ()) if each != {"type": "null"}]
    if len(choices) != 1:
        return kind
    return {name: value for name, value in {**choices[0], **kind}.items() if name not in ("anyOf", "default")}


def _answers(path: str, said: ApiOperation, by_shape: dict[int, Json]) -> dict[str, Json]:
    fine: dict[str, Json] = {"description": "Done"}
    if said.response is not None:
        fine["content"] = {said.media_type: {"schema": by_shape[id(said.response)]}}
    elif said.media_type != "application/json":
        fine["content"] = {said.media_type: {"schema": {"type": "string"}}}
    answers = {str(said.status): fine}
    for status, text in {**_refusals(path, said), **said.other_responses}.items():
        made: dict[str, Json] = {"description": text}
        if status == 200 and said.response is not None:
            made["content"] = fine["content"]
        elif status >= 400:
            made["content"] = _problem(said)
        answers.setdefault(str(status), made)
    return dict(sorted(answers.items()))


def _refusals(path: str, said: ApiOperation) -> dict[int, str]:
    """What every route of its kind may answer."""
    found = {422: "The request is not valid", 429: "Too many requests", 413: "The body is too long"}
    if said.access != "anyone" or said.scope is not None:
        found |= {401: "No valid token or key", 403: "Not for you"}
    if "{" in path:
        found |= {404: "There is no such thing, or it is not yours"}
    if said.body is not None:
        found |= {408: "The body took too long", 415: "Not application/json", 409: "Conflict"}
    return found


def _problem(said: ApiOperation) -> dict[str, Json]:
    if said.tag == "rpc":
        return {"application/json": {"schema": {"type": "object"}}}
    return {"application/problem+json": {"schema": {"$ref": REF.format(name="ProblemDetails")}}}


def _id(path: str, method: str) -> str:
    words = [word for word in re.split(r"[^a-z0-9]+", path.lower()) if word and word not in ("api", "rest")]
    return "_".join([method, *words])


@api_operation("This description", tag="about", access="anyone", response=dict[str, Any])
async def description(request: Request) -> Response:
    return json_response(build_document(request.app.routes, server=request.scope.get("root_path") or "/"))


@api_operation("The same for people", tag="about", access="anyone", media_type="text/html")
async def page(request: Request) -> Response:
    text = render(build_document(request.app.routes, server=request.scope.get("root_path") or "/"))
    policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
    return HTMLResponse(text, headers={"Content-Security-Policy": policy})


def render(document: dict[str, Json]) -> str:
    """The description as one page."""
    sections: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, said in methods.items():
            sections.setdefault(said["tags"][0], []).append(_article(path, method, said))
    body = "".join(f"<h2 id={tag}>{escape(tag)}</h2>{''.join(parts)}" for tag, parts in sections.items())
    index = " · ".join(f"<a href=#{tag}>{escape(tag)}</a>" for tag in sections)
    shapes = "".join(
        f"<details><summary><code>{escape(name)}</code></summary>{_pre(schema)}</details>"
        for name, schema in document["components"]["schemas"].items()
    )
    info = document["info"]
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{info['title']} API</title><style>{_STYLE}</style>"
        f"<h1>{info['title']} API <small>{info['version']}</small></h1>"
        f"<p>{escape(info['description'])}</p><p>{index} · <a href=#shapes>shapes</a> · "
        f"<a href=openapi.json>openapi.json</a></p>{body}<h2 id=shapes>shapes</h2>{shapes}</html>"
    )


def _article(path: str, method: str, said: dict[str, Json]) -> str:
    access = said.get("x-access", "anyone") + (f", scope {said['x-scope']}" if "x-scope" in said else "")
    parts = [f"<p><small>{escape(access)}</small></p>"]
    if said.get("parameters"):
        parts.append("<h4>Parameters</h4>" + _pre(said["parameters"]))
    if "requestBody" in said:
        parts.append("<h4>Body</h4>" + _pre(said["requestBody"]["content"]))
    parts.append("<h4>Answers</h4>" + _pre(said["responses"]))
    head = f"<b>{method.upper()}</b> <code>{escape(path)}</code> {escape(said['summary'])}"
    return f"<details><summary>{head}</summary>{''.join(parts)}</details>"


def _pre(value: Json) -> str:
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return f"<pre>{escape(text)}</pre>"


def routes() -> Sequence[BaseRoute]:
    return [
        Route("/api/openapi.json", description, methods=["GET"]),
        Route("/api/docs", page, methods=["GET"]),
    ]
