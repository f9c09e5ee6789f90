"""Endpoints for dashboard sessions, for operators: list and end them.

A key ends sessions only of roles that it could sign in with itself: a key that manages keys, but is not an
admin, cannot sign out admins.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.engine import audit, sessions
from holdfast.engine.access import SCOPE_DESCRIPTIONS
from holdfast.engine.sessions import ListedSession
from holdfast.errors import NotFoundError, RefusedError
from holdfast.server.api.audit import audited_transaction
from holdfast.server.api.identity import identify_caller, transaction_as_caller
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.request_parsing import parse_path_uuid

DASHBOARD_SCOPE_PREFIX = "dashboard:"
_SESSION_ENDPOINT_OPTIONS: dict[str, Any] = {"tag": "sessions", "access": "service", "scope": "keys"}


class EndedSessions(msgspec.Struct, kw_only=True):
    """The number of sessions that were ended."""

    ended: int


@api_operation(
    "List dashboard sessions, the last used first", response=list[ListedSession], **_SESSION_ENDPOINT_OPTIONS
)
async def list_sessions(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        return json_response(await sessions.list_sessions(connection))


@api_operation(
    "End a dashboard session",
    status=204,
    other_responses={404: "The session does not exist or has ended already"},
    **_SESSION_ENDPOINT_OPTIONS,
)
async def end_session(request: Request) -> Response:
    session_id, caller = parse_path_uuid(request), await identify_caller(request)
    async with audited_transaction(request, "session.end", str(session_id)) as connection:
        listed = await sessions.list_sessions(connection)
        session = next((each for each in listed if each.id == session_id), None)
        if session is None:
            raise NotFoundError(f"Session {session_id} does not exist or has ended already.")
        scope = DASHBOARD_SCOPE_PREFIX + session.role
        if not caller.has_scope(scope):
            raise RefusedError(f'Your key does not have the scope "{scope}", so it cannot end this session.')
        await sessions.end_session(connection, session_id)
    return Response(status_code=204)


@api_operation(
    "End all dashboard sessions whose role your key has",
    response=EndedSessions,
    **_SESSION_ENDPOINT_OPTIONS,
)
async def end_all_sessions(request: Request) -> Response:
    caller = await identify_caller(request)
    scopes = [scope for scope in SCOPE_DESCRIPTIONS if scope.startswith(DASHBOARD_SCOPE_PREFIX)]
    roles = [scope.removeprefix(DASHBOARD_SCOPE_PREFIX) for scope in scopes if caller.has_scope(scope)]
    async with transaction_as_caller(request) as connection:
        count = await sessions.end_sessions(connection, roles=roles)
        await audit.record_audit_entry(connection, caller.name, "session.end_all", None, {"count": count})
    return json_response(EndedSessions(ended=count))


def build_session_routes() -> list[BaseRoute]:
    return [
        Route("/api/sessions", list_sessions, methods=["GET"]),
        Route("/api/sessions", end_all_sessions, methods=["DELETE"]),
        Route("/api/sessions/{id}", end_session, methods=["DELETE"]),
    ]
