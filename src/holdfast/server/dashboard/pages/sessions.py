"""The sessions page: who is signed in to the dashboard, from where, and buttons that end a session.

Every user sees the sessions of the same login: the same service key, or login links for the same name and
role. A user with the permission `session.manage` sees and ends all sessions.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from starlette.exceptions import HTTPException

from holdfast.engine import sessions
from holdfast.engine.connection import Connection
from holdfast.engine.sessions import ListedSession
from holdfast.formatting import format_count
from holdfast.server.dashboard.browser_names import describe_browser
from holdfast.server.dashboard.registry import register_action, register_page
from holdfast.server.dashboard.site import ActionRequest, DashboardPage, PageRequest

LOGIN_LABELS = {"key": "Service key", "settings_key": "Key of the settings", "link": "Login link"}


@register_page("/sessions", "session.view", all_shards="first")
async def list_sessions(request: PageRequest) -> DashboardPage:
    rows = [
        _describe_session(session) for session in await _list_visible_sessions(request, request.connection)
    ]
    return DashboardPage(
        "sessions.html",
        "Sessions",
        {
            "rows": rows,
            "current_id": request.session.id,
            "can_manage": _can_manage(request),
            "can_end_others": any(row["session"].id != request.session.id for row in rows),
            "is_host_login": request.session.id is None,
        },
    )


def _can_manage(request: PageRequest) -> bool:
    return request.can("session.manage") and request.tenant is None


async def _list_visible_sessions(request: PageRequest, connection: Connection) -> list[ListedSession]:
    """List the sessions that the user may see and end."""
    if _can_manage(request):
        return await sessions.list_sessions(connection)
    if request.session.id is None:  # the host application signs users in, and ends their sessions
        return []
    return await sessions.list_sessions(connection, same_login_as=request.session.id)


def _describe_session(session: ListedSession) -> dict[str, Any]:
    return {
        "session": session,
        "login": LOGIN_LABELS[session.login],
        "browser": describe_browser(session.user_agent),
    }


@register_action("/sessions/{id}/end", "session.view")
async def end_session(action: ActionRequest) -> tuple[str, str]:
    session_id: UUID = action.request.parse_id()
    visible = await _list_visible_sessions(action.request, action.connection)
    session = next((each for each in visible if each.id == session_id), None)
    if session is None or not await sessions.end_session(action.connection, session_id):
        raise HTTPException(404, f"Session {session_id} does not exist or has ended already.")
    await action.record_audit("session.end", session_id, name=session.name, role=session.role)
    return "/sessions", f"The session of {session.name} has ended."


@register_action("/sessions/end-others", "session.view")
async def end_other_sessions(action: ActionRequest) -> tuple[str, str]:
    request, current_id = action.request, action.request.session.id
    count = 0
    if _can_manage(request):
        count = await sessions.end_sessions(action.connection, except_id=current_id)
    elif current_id is not None:
        count = await sessions.end_sessions(action.connection, except_id=current_id, same_login_as=current_id)
    await action.record_audit("session.end_others", current_id, count=count)
    return "/sessions", f"{format_count(count, 'other session')} ended."
