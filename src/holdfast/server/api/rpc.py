"""Call SQL functions over HTTP at `/rest/v1/rpc/{function}`, compatible with PostgREST and Supabase clients.

The header `Content-Profile` (`Accept-Profile` for GET) names the schema, which must be one of the setting
`rpc_schemas`. Without the header, it is the first of them. Arguments are passed by name, as a JSON object.
Errors have the format and status codes of PostgREST.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.engine import quotas, rpc
from holdfast.engine.connection import Connection
from holdfast.engine.rpc import SqlCallError
from holdfast.errors import HoldfastError, build_error_from_sqlstate
from holdfast.model import Json
from holdfast.server.api.identity import identify_caller, transaction_as_caller
from holdfast.server.api.operations import admit_caller, api_operation
from holdfast.server.api.problem_responses import get_error_status
from holdfast.server.api.request_parsing import read_json_body
from holdfast.server.api.services import get_services

SINGLE_OBJECT_MEDIA_TYPE = "application/vnd.pgrst.object+json"
SUBMIT_FUNCTION_NAMES = {"submit", "submit_many", "submit_within_job_limit"}

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
    "scope": "rpc",
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
        await admit_caller(request, "user", "rpc")
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
    async with transaction_as_caller(request) as connection:
        if read_only:
            await rpc.set_transaction_read_only(connection)
        name = request.path_params["function"]
        functions = get_services(request).rpc_functions
        function = await functions.find_function(connection, schema, name, list(arguments))
        await _enforce_user_job_limit(request, connection, function, arguments)
        text = await rpc.call_function(connection, function, arguments, as_text=read_only)
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


async def _enforce_user_job_limit(
    request: Request, connection: Connection, function: rpc.SqlFunction, arguments: dict[str, Json]
) -> None:
    """Reject a call of a submit function if the user has too many unfinished jobs."""
    caller = await identify_caller(request)
    if caller.owner is None or function.schema != "holdfast" or function.name not in SUBMIT_FUNCTION_NAMES:
        return
    jobs: Json = arguments.get("p_jobs")
    count = max(len(jobs), 1) if isinstance(jobs, list) else 1  # pyright: ignore[reportUnknownArgumentType]
    max_jobs = get_services(request).settings.user_jobs
    await quotas.check_unfinished_job_limit(connection, caller.owner, max_jobs - count + 1)


def build_rpc_routes() -> list[BaseRoute]:
    return [
        Route("/rest/v1/rpc/{function}", call_sql_function_with_body, methods=["POST"]),
        Route("/rest/v1/rpc/{function}", call_sql_function_with_query, methods=["GET"]),
    ]
