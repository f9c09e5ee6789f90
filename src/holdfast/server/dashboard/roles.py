"""Roles and permissions. A role is a set of named permissions, and every route names the one it needs.

Pages leave out what a user may not do, and the server checks the permission again on every request. Only the
server's check protects anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.errors import InvalidError

_SUPPORT_PERMISSIONS = frozenset(
    {"jobs.view", "errors.view", "artifact.view", "batch.view", "settings.edit", "session.view"}
)
_VIEWER_PERMISSIONS = _SUPPORT_PERMISSIONS | {
    "payload.view",
    "artifact.download",
    "system.view",
    "message.view",
}
_OPERATOR_PERMISSIONS = _VIEWER_PERMISSIONS | {
    *("jobs.retry", "jobs.cancel", "jobs.submit", "jobs.edit", "bulk.run", "errors.ignore", "artifact.keep"),
    *("queue.pause", "schedule.run", "message.act", "worker.stop", "view.save", "audit.view", "alert.act"),
}
_ADMIN_PERMISSIONS = _OPERATOR_PERMISSIONS | {
    "queue.limit",
    "schedule.edit",
    "artifact.delete",
    "payload.secret",
    "session.manage",
    "webhook.edit",
    "alert.edit",
}

PERMISSIONS_BY_ROLE: Final[dict[str, frozenset[str]]] = {
    "viewer": _VIEWER_PERMISSIONS,
    "support": _SUPPORT_PERMISSIONS,
    "operator": _OPERATOR_PERMISSIONS,
    "admin": _ADMIN_PERMISSIONS,
}
ALL_PERMISSIONS: Final = tuple(sorted(_ADMIN_PERMISSIONS))


@dataclass(frozen=True)
class DashboardUser:
    """A signed-in user of the dashboard. A user with a `tenant` sees only jobs of that owner.

    Raises `InvalidError` if the role does not exist.

    >>> from holdfast.server import DashboardUser
    >>> async def identify_user(request):
    ...     user = request.session.get("user")
    ...     return DashboardUser(user["name"], "operator") if user else None
    """

    name: str
    role: str
    tenant: str | None = None

    def __post_init__(self) -> None:
        if self.role not in PERMISSIONS_BY_ROLE:
            raise InvalidError(
                f"Role {self.role!r} does not exist.",
                fix=f"Choose one of: {', '.join(PERMISSIONS_BY_ROLE)}.",
                field="role",
            )

    @property
    def permissions(self) -> frozenset[str]:
        """The permissions of the user's role."""
        return PERMISSIONS_BY_ROLE[self.role]

    def can(self, permission: str) -> bool:
        """Return whether the user's role has a permission, such as `jobs.retry`."""
        return permission in self.permissions

    @property
    def actor(self) -> str:
        """The user's name and role for the audit log, such as `ann (operator)`."""
        return f"{self.name} ({self.role})"
