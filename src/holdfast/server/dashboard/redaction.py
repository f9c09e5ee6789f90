"""Redaction: what a user may not read does not leave the server.

There are three rules. Without the permission `payload.view`, users see no payload at all. Without
`payload.secret`, every field is masked whose name suggests a secret, or that the schema of its task marks as
one. The values of such fields are also masked wherever else they occur in the same job: errors, tracebacks,
logs, progress and results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from holdfast.errors import InvalidError
from holdfast.redaction import MASK_TEXT, UNMASKABLE_TEXT, SecretMasker, is_secret_field
from holdfast.search import SearchQuery
from holdfast.server.dashboard.roles import DashboardUser

__all__ = ["HIDDEN_PAYLOAD_TEXT", "MASK_TEXT", "PayloadRedactor", "restrict_search"]

HIDDEN_PAYLOAD_TEXT: Final = "(hidden for your role)"


class PayloadRedactor:
    """Hides payloads and masks secrets of one job that a user's role may not see.

    Call `collect_secrets` with every payload first. `redact_text` can mask only secrets that it knows.
    Without a masker, all texts and payloads are hidden: the secrets in them are not known.
    """

    def __init__(self, user: DashboardUser, masker: SecretMasker | None = None) -> None:
        self.can_view_payloads = user.can("payload.view")
        self.can_view_secrets = user.can("payload.secret")
        self._masker = masker

    def collect_secrets(self, value: Any, schema: Mapping[str, Any] | None = None) -> None:
        """Record the secrets in a payload, so that they are masked in texts too."""
        if not self.can_view_secrets and self._masker is not None:
            self._masker.collect_secrets(value, schema)

    def redact_payload(self, value: Any, schema: Mapping[str, Any] | None = None) -> Any:
        """Return a payload with secrets masked, or a placeholder if the user may not see payloads."""
        if not self.can_view_payloads:
            return HIDDEN_PAYLOAD_TEXT if value is not None else None
        if self.can_view_secrets or value is None:
            return value
        return UNMASKABLE_TEXT if self._masker is None else self._masker.mask_value(value, schema)

    def redact_text(self, text: str | None) -> str:
        """Return a text with secrets masked. Return an empty text for None."""
        if not text or self.can_view_secrets:
            return text or ""
        if not self.can_view_payloads:
            return HIDDEN_PAYLOAD_TEXT
        return UNMASKABLE_TEXT if self._masker is None else self._masker.mask_text(text)


def restrict_search(query: SearchQuery, user: DashboardUser, secret_fields: frozenset[str]) -> SearchQuery:
    """Return the search that a user may run. Raise `InvalidError` if it uses values hidden from the user.

    A search that matches a masked value confirms a guess of it. So a user who sees secrets masked searches
    neither in secret fields nor in the messages of errors. `secret_fields` are the fields that schemas mark
    as secret.
    """
    if user.can("payload.secret") and user.can("payload.view"):
        return query
    for term in query.terms:
        if term.field in {"args", "result"} and not user.can("payload.view"):
            raise InvalidError(f"Your role may not search in {term.field}.", field="q")
        names = [value.partition("=")[0] for value in term.values] if term.field == "tag" else term.path
        secret_name = next((name for name in names if is_secret_field(name, secret_fields)), None)
        if secret_name is not None:
            raise InvalidError(f"{secret_name} is a secret. Your role may not search it.", field="q")
    return replace(query, skip_error_messages=True)
