"""Call SQL functions over HTTP at `/rest/v1/rpc/{function}`, compatible with PostgREST and Supabase clients.

The header `Content-Profile` (`Accept-Profile` for GET) names the schema, which must be one of the setting
`rpc_schemas`. Without the header, it is the first of them. Arguments are passed by name, as a JSON object.
Errors have the format and status codes of PostgREST.

`engine/rpc_functions.py` lists the functions of Holdfast that can be called, the scope that a service key
needs for each, and how a change is recorded in the audit log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.engine import audit, rpc
from holdfast.engine.connection import Connection
from holdfast.engine.rpc import SqlCallError
from holdfast.engine.rpc_functions import RPC_SCOPE, RpcRule, find_rpc_rule
from holdfast.errors import HoldfastError, build_error_from_sqlstate
from holdfast.model import Json
from holdfast.server.api.identity import Caller, identify_caller, transaction_as_caller
from holdfast.server.api.operations import admit_caller, api_operation
from holdfast.server.api.problem_responses import get_error_status
from holdfast.server.api.request_parsing import read_json_body
from holdfast.server.api.services import get_services

SINGLE_OBJECT_MEDIA_TYPE = "application/vnd.pgrst.object+json"

# The status codes of PostgREST. The longest prefix of the SQLSTATE decides.
_HTTP_STATUS_BY_SQLSTATE = {
    "08": 503, "09": 500, "0L": 403, "0P": 403, "23503": 409, "23505": 409, "25006": 405, "25": 500,
    "28": 403, "2D": 500, "38": 500, "39": 500, "3B": 500, "40": 503, "42501": 403, "42883": 404,
    "42P01": 404, "53": 503, "54": 413, "55": 409, "57": 503, "58": 500, "P0": 400, "XX": 500,
    "PGRST106": 406, "PGRST116": 406, "PGRST202": 404, "PGRST203": 300, "PGRST301": 401, "PGRST302": 401,
}  # fmt: skip


class RpcError(msgspec.Struct, kw_only=True):
    """Body of an error response of a SQL function call, in the format of PostgREST."""

    code: str
    message: str
    details: str | None = None
    hint: str | None = None


def _get_status_for_sqlstate(code: str) -> int:
    error = build_error_from_sqlstate(code, "")
    if error is not None:
        return get_error_status(error)
    for length in (8, 5, 2):
        if code[:length] in _HTTP_STATUS_BY_SQLSTATE:
            return _HTTP_STATUS_BY_SQLSTATE[code[:length]]
    return 400


def _build_rpc_error_response(error: SqlCallError, status: int | None = None) -> Response:
    body = RpcError(code=error.code, message=error.message, details=error.details, hint=error.hint)
    status = status or _get_status_for_sqlstate(error.code)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


_RPC_ENDPOINT_OPTIONS: dict[str, Any] = {
    "tag": "SQL functions",
    "access": "anyone",  # _call_and_convert_errors rejects anonymous callers in the format of PostgREST
    "scope": RPC_SCOPE,  # the function decides which other scope is needed
    "response": Any,
    "other_responses": {
        204: "The function returns nothing",
        300: "More than one function has these arguments",
        400: "The database rejected the call",
        404: "The function does not exist",
        405: "The function writes, but the request is a GET",
        406: "The schema does not exist, or the result is not a single row",
        409: "Conflict",
    },
}


@api_operation(
    "Call a SQL function with named arguments",
    body=dict[str, Any],
    request_headers=("Content-Profile",),
    **_RPC_ENDPOINT_OPTIONS,
)
async def call_sql_function_with_body(request: Request) -> Response:
    async def read_arguments() -> Json:
        return await read_json_body(request)

    profile = request.headers.get("content-profile")
    return await _call_and_convert_errors(request, profile, read_arguments, read_only=False)


@api_operation(
    "Call a SQL function that only reads",
    query=dict[str, str],
    request_headers=("Accept-Profile",),
    **_RPC_ENDPOINT_OPTIONS,
)
async def call_sql_function_with_query(request: Request) -> Response:
    async def read_arguments() -> Json:
        return dict(request.query_params)

    profile = request.headers.get("accept-profile")
    return await _call_and_convert_errors(request, profile, read_arguments, read_only=True)


async def _call_and_convert_errors(
    request: Request,
    profile: str | None,
    read_arguments: Callable[[], Awaitable[Json]],
    *,
    read_only: bool,
) -> Response:
    """Call a SQL function and convert every error to the format of PostgREST."""
    try:
        await admit_caller(request, "user", RPC_SCOPE)
        schema = _choose_rpc_schema(request, profile)
        return await _respond_to_rpc_call(request, schema, await read_arguments(), read_only=read_only)
    except SqlCallError as error:
        return _build_rpc_error_response(error)
    except HTTPException as error:
        code = {401: "PGRST301", 403: "42501"}.get(error.status_code, "PGRST100")
        return _build_rpc_error_response(SqlCallError(code, error.detail), error.status_code)
    except HoldfastError as error:
        status = get_error_status(error)
        if status >= 500:
            raise
        code = error.sqlstate or "PGRST102"
        return _build_rpc_error_response(SqlCallError(code, error.message, hint=error.fix), status)


def _choose_rpc_schema(request: Request, profile: str | None) -> str:
    setting = get_services(request).settings.rpc_schemas
    schemas = [name.strip() for name in setting.split(",") if name.strip()]
    if profile is None and schemas:
        return schemas[0]
    if profile not in schemas:
        raise SqlCallError("PGRST106", f"The schema must be one of the following: {', '.join(schemas)}")
    return profile


async def _respond_to_rpc_call(request: Request, schema: str, body: Json, *, read_only: bool) -> Response:
    if not isinstance(body, dict):
        raise SqlCallError("PGRST102", "The arguments must be a JSON object with the names of the parameters")
    arguments = cast("dict[str, Json]", body)
    name = request.path_params["function"]
    caller = await identify_caller(request)
    rule = _require_callable_function(caller, schema, name)
    async with transaction_as_caller(request) as connection:
        if read_only:
            await rpc.set_transaction_read_only(connection)
        functions = get_services(request).rpc_functions
        function = await functions.find_function(connection, schema, name, list(arguments))
        text = await rpc.call_function(connection, function, arguments, as_text=read_only)
        if function.is_volatile and not read_only:
            await _record_rpc_call(request, connection, rule, function, arguments, text)
    if text is None:
        return Response(status_code=204)
    headers: dict[str, str] = {}
    if function.returns_set:
        rows: list[Any] = msgspec.json.decode(text)
        headers["Content-Range"] = f"0-{len(rows) - 1}/*" if rows else "*/*"
        if SINGLE_OBJECT_MEDIA_TYPE in request.headers.get("accept", ""):
            text = _encode_single_row(rows)
    return Response(text, headers=headers, media_type="application/json")


def _encode_single_row(rows: list[Any]) -> str:
    if len(rows) != 1:
        raise SqlCallError(
            "PGRST116",
            "Cannot coerce the result to a single JSON object",
            details=f"The result contains {len(rows)} rows",
        )
    return msgspec.json.encode(rows[0]).decode()


def _require_callable_function(caller: Caller, schema: str, name: str) -> RpcRule:
    """Return the rule of a function that the caller may call. Raise SqlCallError otherwise."""
    rule = find_rpc_rule(schema, name)
    if rule is None:
        raise rpc.build_missing_function_error(schema, name)
    if caller.kind == "user" and not rule.users:
        raise SqlCallError(
            "42501", f"permission denied for function {name}", hint="Only services may call it."
        )
    if caller.kind == "service" and not caller.has_scope(rule.scope):
        raise SqlCallError(
            "42501",
            f"permission denied for function {name}",
            hint=f"Use a service key with the scope {rule.scope} besides {RPC_SCOPE}.",
        )
    return rule


async def _record_rpc_call(
    request: Request,
    connection: Connection,
    rule: RpcRule,
    function: rpc.SqlFunction,
    arguments: dict[str, Json],
    result: str | None,
) -> None:
    """Add a change to the audit log, in its transaction. Users' changes are recorded as over HTTP."""
    caller = await identify_caller(request)
    if rule.action is None or (caller.kind == "user" and not rule.audit_users):
        return
    if caller.kind == "user":
        allowed_roles = await get_services(request).fetch_allowed_roles()
        await rpc.set_role_for_audit(connection, "service_role" if "service_role" in allowed_roles else None)
    target = rule.choose_target(f"{function.schema}.{function.name}", arguments, result)
    await audit.record_audit_entry(
        connection, caller.name, rule.action, target, rule.build_details(arguments)
    )


def build_rpc_routes() -> list[BaseRoute]:
    return [
        Route("/rest/v1/rpc/{function}", call_sql_function_with_body, methods=["POST"]),
        Route("/rest/v1/rpc/{function}", call_sql_function_with_query, methods=["GET"]),
    ]
