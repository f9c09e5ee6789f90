"""The dashboard: server-rendered pages over the engine, mountable in any ASGI application.

    app = create_app(settings, dashboard=create_dashboard)                           # at /dashboard
    fastapi_app.mount("/ops", create_dashboard(services, identify_user=find_user))   # inside your application

Nobody gets in without signing in (`login`). The role of a user decides what they may do (`roles`), and the
server removes what they may not read (`redaction`). Every change is written to the audit log.
"""

from __future__ import annotations

from holdfast.server.dashboard.app import IdentifyUser, create_dashboard
from holdfast.server.dashboard.login import create_login_link
from holdfast.server.dashboard.roles import ALL_PERMISSIONS, PERMISSIONS_BY_ROLE, DashboardUser

__all__ = [
    "ALL_PERMISSIONS",
    "PERMISSIONS_BY_ROLE",
    "DashboardUser",
    "IdentifyUser",
    "create_dashboard",
    "create_login_link",
]
