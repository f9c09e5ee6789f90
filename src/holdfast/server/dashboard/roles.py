"""Who may do what. A role is a set of named permissions; every write route names the one it needs.

The pages hide what a visitor may not do, and the server checks it again on every request: what a page shows
is a courtesy, what the server refuses is the rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.errors import InvalidError

_SEE = frozenset({"jobs.view", "errors.view", "artifact.view", "batch.view", "settings.edit"})
_LOOK = _SEE | {"payload.view", "artifact.download", "system.view", "message.view"}
_ACT = _LOOK | {
    *("jobs.retry", "jobs.cancel", "jobs.submit", "jobs.edit", "bulk.run", "errors.ignore", "artifact.keep"),
    *("queue.pause", "schedule.run", "message.act", "worker.stop", "view.save", "audit.view"),
}
_RULE = _ACT | {"queue.limit", "schedule.edit", "artifact.delete", "payload.secret", "webhook.edit"}

ROLES: Final[dict[str, frozenset[str]]] = {
    "viewer": _LOOK,
    "support": _SEE,
    "operator": _ACT,
    "admin": _RULE,
}
PERMISSIONS: Final = tuple(sorted(_RULE))


@dataclass(frozen=True)
class Visitor:
    """Somebody who was let in. `tenant` limits what they see to jobs of that owner."""

    name: str
    role: str
    tenant: str | None = None

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise InvalidError(f"There is no role {self.role!r}.", fix=f"Known: {', '.join(ROLES)}.")

    @property
    def permissions(self) -> frozenset[str]:
        return ROLES[self.role]

    def may(self, permission: str) -> bool:
        return permission in self.permissions

    @property
    def actor(self) -> str:
        """For the audit log."""
        return f"{self.name} ({self.role})"
