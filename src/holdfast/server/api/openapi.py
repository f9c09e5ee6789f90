"""Build the OpenAPI 3.1 document from the declarations of the endpoints, and serve it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from holdfast.model import Json
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.operations import ApiOperation, api_operation, find_declared_operation
from holdfast.server.api.priority_routes import PriorityRoute
from holdfast.server.api.problem_responses import ProblemDetails
from holdfast.server.api.request_examples import REQUEST_BODY_EXAMPLES
from holdfast.version import __version__

SCHEMA_REFERENCE_TEMPLATE = "#/components/schemas/{name}"
_PATH_PARAMETER_PATTERN = re.compile(r"{([a-z_]+)(?::[a-z]+)?}")
_UUID_PATH_PARAMETERS = {"id", "task", "batch", "job"}
_API_DESCRIPTION = """Background jobs on PostgreSQL. Users send a signed token and services send a key, both
as a bearer token. Errors are application/problem+json. Errors of /rest/v1 have the format of PostgREST."""


def list_declared_operations(
    routes: Iterable[BaseRoute], prefix: str = ""
) -> list[tuple[str, str, ApiOperation]]:
    """Return path, method and declaration of every endpoint that `api_operation` declares.

    Built-in endpoints come before those of priority routes, which replace them for some requests.
    """
    operations: list[tuple[str, str, ApiOperation]] = []
    for route in sorted(routes, key=lambda each: isinstance(each, PriorityRoute)):
        if isinstance(route, Mount):
            operations += list_declared_operations(route.routes or (), prefix + route.path)
        elif isinstance(route, Route):
            operation = find_declared_operation(route.endpoint)
            if operation is not None:
                path = _PATH_PARAMETER_PATTERN.sub(r"{\1}", prefix + route.path)
                methods = sorted(set(route.methods or ()) - {"HEAD"})
                operations += [(path, method.lower(), operation) for method in methods]
    return operations


def build_openapi_from_routes(routes: Iterable[BaseRoute], *, server: str = "/") -> dict[str, Json]:
    """Build the OpenAPI document of the routes whose endpoints `api_operation` declares."""
    operations = list_declared_operations(routes)
    types = [
        each for *_, operation in operations for each in (operation.body, operation.query, operation.response)
    ]
    types = [*(each for each in types if each not in (None, bytes)), ProblemDetails]
    schemas, components = msgspec.json.schema_components(types, ref_template=SCHEMA_REFERENCE_TEMPLATE)
    # Types such as dict[...] are not hashable, so the id of the type is the key.
    schema_by_type = {id(each): schema for each, schema in zip(types, schemas, strict=True)}
    for component in components.values():
        if "description" in component:
            component["description"] = _remove_python_example(component["description"])
    paths: dict[str, dict[str, Json]] = {}
    for path, method, operation in operations:
        described = _describe_operation(path, method, operation, schema_by_type, components)
        other = paths.setdefault(path, {}).setdefault(method, described)
        if other is not described:
            _add_response_form(other, operation, schema_by_type)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": __version__, "description": _API_DESCRIPTION},
        "servers": [{"url": server}],
        "tags": [{"name": name} for name in dict.fromkeys(operation.tag for *_, operation in operations)],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT or service key"},
                "apikey": {"type": "apiKey", "in": "header", "name": "apikey"},
            },
        },
    }


def _add_response_form(
    described: dict[str, Json], other: ApiOperation, schema_by_type: dict[int, Json]
) -> None:
    """Describe that a route has two endpoints (see `PriorityRoute`), each with its own form of response."""
    success = described["responses"].get(str(other.status))
    if other.response is None or success is None or "content" not in success:
        return
    for content in success["content"].values():
        content["schema"] = {"anyOf": [content["schema"], schema_by_type[id(other.response)]]}


def _remove_python_example(description: str) -> str:
    """Return a docstring without its indentation and without its Python example."""
    return inspect.cleandoc(description).partition(">>>")[0].strip()


def _describe_operation(
    path: str,
    method: str,
    operation: ApiOperation,
    schema_by_type: dict[int, Json],
    components: dict[str, Json],
) -> dict[str, Json]:
    parameters = [_describe_path_parameter(name) for name in _PATH_PARAMETER_PATTERN.findall(path)]
    described: dict[str, Json] = {
        "summary": operation.summary,
        "operationId": _build_operation_id(path, method),
        "tags": [operation.tag],
        "responses": _describe_responses(path, operation, schema_by_type),
    }
    if operation.query is not None:
        query = _resolve_schema(schema_by_type[id(operation.query)], components)
        parameters += _describe_query_parameters(query)
        if "description" in query:
            described["description"] = query["description"]
    parameters += [
        {"name": name, "in": "header", "schema": {"type": "string"}} for name in operation.request_headers
    ]
    if operation.access not in {"public", "anyone"} or operation.scope is not None:
        described["security"] = [{"token": []}, {"apikey": []}]
        described["x-access"] = operation.access if operation.access != "anyone" else "user"
        if operation.scope is not None:
            described["x-scope"] = operation.scope
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = _describe_request_body(
            _build_operation_id(path, method), operation, schema_by_type, components
        )
    return described


def _describe_request_body(
    operation_id: str, operation: ApiOperation, schema_by_type: dict[int, Json], components: dict[str, Json]
) -> dict[str, Json]:
    if operation.body is bytes:
        return {"content": {operation.request_media_type: {"schema": {"type": "string", "format": "binary"}}}}
    schema = schema_by_type[id(operation.body)]
    content: dict[str, Json] = {"schema": schema}
    example = REQUEST_BODY_EXAMPLES.get(operation_id, operation.example)
    if example is not None:
        content["example"] = example
    required = bool(_resolve_schema(schema, components).get("required"))
    return {"content": {operation.request_media_type: content}, "required": required}


def _resolve_schema(schema: Json, components: dict[str, Json]) -> dict[str, Json]:
    reference = schema.get("$ref")
    resolved: dict[str, Json] = components[reference.rpartition("/")[2]] if reference else schema
    return resolved


def _describe_path_parameter(name: str) -> dict[str, Json]:
    schema: dict[str, Json] = {"type": "string", "minLength": 1, "maxLength": 200}
    if name in _UUID_PATH_PARAMETERS:
        schema = {"type": "string", "format": "uuid"}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _describe_query_parameters(query: dict[str, Json]) -> list[dict[str, Json]]:
    return [
        {
            "name": name,
            "in": "query",
            "required": name in query["required"],
            "schema": _remove_null_choice(schema),
        }
        for name, schema in query.get("properties", {}).items()
    ]


def _remove_null_choice(schema: dict[str, Json]) -> dict[str, Json]:
    """Remove null from the schema of an optional query parameter. A query string cannot express null."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) != 1:
        return schema
    merged = {**choices[0], **schema}
    return {name: value for name, value in merged.items() if name not in ("anyOf", "default")}


def _describe_responses(
    path: str, operation: ApiOperation, schema_by_type: dict[int, Json]
) -> dict[str, Json]:
    success: dict[str, Json] = {"description": "Success"}
    if operation.response is not None:
        success["content"] = {operation.media_type: {"schema": schema_by_type[id(operation.response)]}}
    elif operation.media_type != "application/json":
        success["content"] = {operation.media_type: {"schema": {"type": "string"}}}
    responses = {str(operation.status): success}
    for status, text in {**_build_common_errors(path, operation), **operation.other_responses}.items():
        response: dict[str, Json] = {"description": text}
        if status == 200 and operation.response is not None:
            response["content"] = success["content"]
        elif status >= 400:
            response["content"] = _build_error_content(operation)
        responses.setdefault(str(status), response)
    return dict(sorted(responses.items()))


def _build_common_errors(path: str, operation: ApiOperation) -> dict[int, str]:
    """Return the descriptions of common error responses of an endpoint, by HTTP status."""
    errors = {422: "The request is not valid", 429: "Too many requests", 413: "The body is too large"}
    if operation.access not in {"public", "anyone"} or operation.scope is not None:
        errors |= {401: "The token or key is missing or not valid", 403: "You may not do this"}
    if "{" in path:
        errors |= {404: "The object does not exist, or you may not see it"}
    if operation.body is not None:
        errors |= {
            408: "The body took too long to arrive",
            415: "The content type is not application/json",
            409: "Conflict",
        }
    return errors


def _build_error_content(operation: ApiOperation) -> dict[str, Json]:
    if operation.tag == "SQL functions":
        return {"application/json": {"schema": {"type": "object"}}}
    return {
        "application/problem+json": {
            "schema": {"$ref": SCHEMA_REFERENCE_TEMPLATE.format(name="ProblemDetails")}
        }
    }


def _build_operation_id(path: str, method: str) -> str:
    words = [word for word in re.split(r"[^a-z0-9]+", path.lower()) if word and word not in ("api", "rest")]
    return "_".join([method, *words])


@api_operation("Get the OpenAPI document", tag="documentation", access="public", response=dict[str, Any])
async def serve_openapi_document(request: Request) -> Response:
    return json_response(
        build_openapi_from_routes(request.app.routes, server=request.scope.get("root_path") or "/")
    )


def build_openapi_routes() -> Sequence[BaseRoute]:
    return [Route("/api/openapi.json", serve_openapi_document, methods=["GET"])]
