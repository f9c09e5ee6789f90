"""`/rest/v1/rpc/{function}`: SQL functions as PostgREST serves them, so that Supabase's clients work
unchanged.

The schema comes from `Content-Profile` (`Accept-Profile` for GET) and is one of the setting `rpc_schemas`;
the first of them without a header. Arguments are a JSON object by name. Errors have PostgREST's shape and
status codes.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.engine import access, rpc
from holdfast.engine.connection import Connection
from holdfast.engine.rpc import CallError
from holdfast.errors import HoldfastError, from_sqlstate
from holdfast.model import Json
from holdfast.server.api.identity import identify_caller, transaction_as_caller
from holdfast.server.api.operations import admit_caller, api_operation
from holdfast.server.api.problem_responses import get_error_status
from holdfast.server.api.request_parsing import read_json_body
from holdfast.server.api.services import get_services

OBJECT = "application/vnd.pgrst.object+json"
SUBMITTING = {"submit", "submit_many", "submit_within_job_limit"}

# PostgREST's table of statuses: the longest prefix of the code decides.
_STATUS = {
    "08": 503, "09": 500, "0L": 403, "0P": 403, "23503": 409, "23505": 409, "25006": 405, "25": 500,
    "28": 403, "2D": 500, "38": 500, "39": 500, "3B": 500, "40": 503, "42501": 403, "42883": 404,
    "42P01": 404, "53": 503, "54": 413, "55": 409, "57": 503, "58": 500, "P0": 400, "XX": 500,
    "PGRST106": 406, "PGRST116": 406, "PGRST202": 404, "PGRST203": 300, "PGRST301": 401, "PGRST302": 401,
}  # fmt: skip


class RpcProblem(msgspec.Struct, kw_only=True):
    code: str
    message: str
    details: str | None = None
    hint: str | None = None


def status_for(code: str) -> int:
    ours = from_sqlstate(code, "")
    if ours is not None:
        return get_error_status(ours)
    for length in (8, 5, 2):
        if code[:length] in _STATUS:
            return _STATUS[code[:length]]
    return 400


def refused(problem: CallError, status: int | None = None) -> Response:
    body = RpcProblem(code=problem.code, message=problem.message, details=problem.details, hint=problem.hint)
    status = status or status_for(problem.code)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


_SAID: dict[str, Any] = {
    "tag": "rpc",
    "access": "anyone",  # refused below, in PostgREST's words
    "scope": "rpc",
    "response": Any,
    "other_responses": {
        204: "The function answers nothing",
        300: "More than one function fits",
        400: "The database refused it",
        404: "No such function",
        405: "It would write",
        406: "No such schema, or not one row",
        409: "Conflict",
    },
}


@api_operation(
    "Call a function with named arguments",
    body=dict[str, Any],
    request_headers=("Content-Profile",),
    **_SAID,
)
async def post(request: Request) -> Response:
    async def arguments() -> Json:
        return await read_json_body(request)

    return await _answered(request, request.headers.get("content-profile"), arguments, read_only=False)


@api_operation(
    "Call a function that only reads", query=dict[str, str], request_headers=("Accept-Profile",), **_SAID
)
async def get(request: Request) -> Response:
    async def arguments() -> Json:
        return dict(request.query_params)

    return await _answered(request, request.headers.get("accept-profile"), arguments, read_only=True)


async def _answered(request: Request, profile: str | None, arguments: Any, *, read_only: bool) -> Response:
    """Every error in the shape that PostgREST's clients read."""
    try:
        await admit_caller(request, "user", "rpc")
        return await _call(request, _schema(request, profile), await arguments(), read_only=read_only)
    except CallError as problem:
        return refused(problem)
    except HTTPException as problem:
        code = {401: "PGRST301", 403: "42501"}.get(problem.status_code, "PGRST100")
        return refused(CallError(code, problem.detail), problem.status_code)
    except HoldfastError as problem:
        status = get_error_status(problem)
        if status >= 500:
            raise
        code = problem.sqlstate or "PGRST102"
        return refused(CallError(code, problem.message, hint=problem.fix), status)


def _schema(request: Request, profile: str | None) -> str:
    allowed = [name.strip() for name in get_services(request).settings.rpc_schemas.split(",") if name.strip()]
    if profile is None and allowed:
        return allowed[0]
    if profile not in allowed:
        raise CallError("PGRST106", f"The schema must be one of the following: {', '.join(allowed)}")
    return profile


async def _call(request: Request, schema: str, given: Json, *, read_only: bool) -> Response:
    if not isinstance(given, dict):
        raise CallError("PGRST102", "All arguments are to be given by name, in an object")
    arguments = cast("dict[str, Json]", given)
    async with transaction_as_caller(request) as connection:
        if read_only:
            await rpc.read_only(connection)
        name = request.path_params["function"]
        function = await get_services(request).rpc_functions.find(connection, schema, name, list(arguments))
        await _reserve(request, connection, function, arguments)
        text = await rpc.call(connection, function, arguments, as_text=read_only)
    if text is None:
        return Response(status_code=204)
    headers: dict[str, str] = {}
    if function.many:
        rows: list[Any] = msgspec.json.decode(text)
        headers["Content-Range"] = f"0-{len(rows) - 1}/*" if rows else "*/*"
        if OBJECT in request.headers.get("accept", ""):
            if len(rows) != 1:
                raise CallError(
                    "PGRST116",
                    "Cannot coerce the result to a single JSON object",
                    details=f"The result contains {len(rows)} rows",
                )
            text = msgspec.json.encode(rows[0]).decode()
    return Response(text, headers=headers, media_type="application/json")


async def _reserve(
    request: Request, connection: Connection, function: rpc.Function, arguments: dict[str, Json]
) -> None:
    """The quota of a user holds on this way in as well."""
    caller = await identify_caller(request)
    if caller.owner is None or function.schema != "holdfast" or function.name not in SUBMITTING:
        return
    many: Json = arguments.get("p_jobs")
    count = max(len(many), 1) if isinstance(many, list) else 1  # pyright: ignore[reportUnknownArgumentType]
    most = get_services(request).settings.user_jobs
    await access.check_unfinished_job_limit(connection, caller.owner, most - count + 1)


def routes() -> list[BaseRoute]:
    return [
        Route("/rest/v1/rpc/{function}", post, methods=["POST"]),
        Route("/rest/v1/rpc/{function}", get, methods=["GET"]),
    ]
