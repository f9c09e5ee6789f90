"""Redaction: what a user may not read does not leave the server.

There are three rules. Without the permission `payload.view`, users see no payload at all. Without
`payload.secret`, every field is masked whose name suggests a secret, or that the schema of its task marks as
one. The values of such fields are also masked wherever else they occur in the same job: errors, tracebacks,
logs, progress and results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.errors import InvalidError
from holdfast.redaction import MASK_TEXT, SECRET_NAME_PATTERN, SecretMasker
from holdfast.search import SearchQuery
from holdfast.server.dashboard.roles import DashboardUser

__all__ = ["HIDDEN_PAYLOAD_TEXT", "MASK_TEXT", "PayloadRedactor", "check_search_permissions"]

HIDDEN_PAYLOAD_TEXT: Final = "(hidden for your role)"


class PayloadRedactor:
    """Hides payloads and masks secrets of one job that a user's role may not see.

    Call `collect_secrets` with every payload first. `redact_text` can mask only secrets that it knows.
    """

    def __init__(self, user: DashboardUser) -> None:
        self.can_view_payloads = user.can("payload.view")
        self.can_view_secrets = user.can("payload.secret")
        self._masker = SecretMasker()

    def collect_secrets(self, value: Any, schema: Mapping[str, Any] | None = None) -> None:
        """Record the secrets in a payload, so that they are masked in texts too."""
        if not self.can_view_secrets:
            self._masker.collect_secrets(value, schema)

    def redact_payload(self, value: Any, schema: Mapping[str, Any] | None = None) -> Any:
        """Return a payload with secrets masked, or a placeholder if the user may not see payloads."""
        if not self.can_view_payloads:
            return HIDDEN_PAYLOAD_TEXT if value is not None else None
        return value if self.can_view_secrets else self._masker.mask_value(value, schema)

    def redact_text(self, text: str | None) -> str:
        """Return a text with secrets masked. Return an empty text for None."""
        if not text or self.can_view_secrets:
            return text or ""
        return self._masker.mask_text(text) if self.can_view_payloads else HIDDEN_PAYLOAD_TEXT


def check_search_permissions(query: SearchQuery, user: DashboardUser) -> None:
    """Raise `InvalidError` if a search uses values that the user may not read."""
    for term in query.terms:
        if term.field in {"args", "result"} and not user.can("payload.view"):
            raise InvalidError(f"Your role may not search in {term.field}.", field="q")
        secret = any(SECRET_NAME_PATTERN.search(name) for name in term.path)
        if secret and not user.can("payload.secret"):
            path = ".".join(term.path)
            raise InvalidError(f"{term.field}.{path} is a secret. Your role may not search it.", field="q")
