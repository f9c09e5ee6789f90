"""The dashboard: server-rendered pages over the engine, mountable in any ASGI application.

    app = create_app(settings, dashboard=create_dashboard)              # holdfast's own API, at /dashboard
    fastapi_app.mount("/ops", create_dashboard(services, roles=who))    # inside yours

Closed by default (`entrance`); what a visitor may do is decided by their role in the server (`roles`); what
they may not read does not leave it (`redaction`); and every change is written to the audit log.
"""

from __future__ import annotations

from holdfast.server.dashboard.app import Who, create_dashboard
from holdfast.server.dashboard.entrance import login_link
from holdfast.server.dashboard.roles import PERMISSIONS, ROLES, Visitor

__all__ = ["PERMISSIONS", "ROLES", "Visitor", "Who", "create_dashboard", "login_link"]
