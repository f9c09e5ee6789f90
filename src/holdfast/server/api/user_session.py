"""Endpoints for the session of a user on the pages of systems: sign in with a token, and sign out.

The pages send the token once and forget it. From then on the browser sends a cookie that scripts cannot read,
and signing out ends the session on every process.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.errors import RefusedError
from holdfast.server.api.identity import (
    identify_caller,
    reject_cross_site_request,
    transaction_as_caller,
)
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.services import get_services
from holdfast.server.api.user_session_store import USER_SESSION_COOKIE

SESSION_PATH = "/api/session"


class UserSessionView(msgspec.Struct, kw_only=True):
    """The session that was started: its user, and when it ends."""

    owner: str
    expires_at: datetime


@api_operation(
    "Sign in to the pages of systems with a user's token",
    tag="sessions",
    response=UserSessionView,
    status=201,
    other_responses={403: "The caller is not a user with a token"},
)
async def start_session(request: Request) -> Response:
    caller = await identify_caller(request)
    if caller.owner is None or caller.session_id is not None or "authorization" not in request.headers:
        raise RefusedError(
            "A session starts with the token of a user.", fix="Send the token in the Authorization header."
        )
    store = get_services(request).user_sessions
    async with transaction_as_caller(request, as_service=True) as connection:
        cookie = await store.start_session(
            connection,
            caller.claims,
            address=request.client.host if request.client else None,
            user_agent=request.headers.get("user-agent"),
        )
    session = await store.find_session(cookie)
    if session is None:
        raise RefusedError("The token has just expired.", fix="Sign in with a new token.")
    lifetime_s = max(0, int((session.expires_at - datetime.now(UTC)).total_seconds()))
    view = UserSessionView(owner=caller.owner, expires_at=session.expires_at)
    return json_response(view, 201, {"Set-Cookie": _build_cookie(request, cookie, lifetime_s)})


@api_operation("Sign out: end the session of the cookie", tag="sessions", access="public", status=204)
async def end_session(request: Request) -> Response:
    """Public, so that the cookie of an ended session is removed too. The cookie itself is the proof."""
    services = get_services(request)
    session = await services.user_sessions.find_session(request.cookies.get(USER_SESSION_COOKIE))
    if session is not None:
        reject_cross_site_request(request)
        async with services.database.connection() as connection:
            await services.user_sessions.end_session(connection, session)
        services.access_monitor.end_session(session.id)
    return Response(status_code=204, headers={"Set-Cookie": _build_cookie(request, "", 0)})


def _build_cookie(request: Request, value: str, lifetime_s: int) -> str:
    secure = "; Secure" if request.url.scheme == "https" else ""
    path = request.scope.get("root_path") or "/"
    return (
        f"{USER_SESSION_COOKIE}={value}; Path={path}; Max-Age={lifetime_s}; HttpOnly; SameSite=Strict{secure}"
    )


def build_user_session_routes() -> list[BaseRoute]:
    return [
        Route(SESSION_PATH, start_session, methods=["POST"]),
        Route(SESSION_PATH, end_session, methods=["DELETE"]),
    ]
