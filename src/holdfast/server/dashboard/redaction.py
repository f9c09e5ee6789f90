"""What a visitor may not read does not leave the server.

Three layers: without `payload.view` no payload at all; without `payload.secret` every field whose name says
that it is a secret, or that its task's schema marks as one, is masked; and the values of such fields are
masked wherever else they turn up in the same job: errors, tracebacks, logs, progress, results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.errors import InvalidError
from holdfast.redaction import MASK, SECRET, Masker
from holdfast.search import Query
from holdfast.server.dashboard.roles import Visitor

__all__ = ["HIDDEN", "MASK", "Redactor", "refuse_prying"]

HIDDEN: Final = "(hidden for your role)"


class Redactor:
    """For one visitor and one job. `learn` the payloads first, then ask for texts."""

    def __init__(self, visitor: Visitor) -> None:
        self.payloads = visitor.may("payload.view")
        self.secrets = visitor.may("payload.secret")
        self._masker = Masker()

    def learn(self, value: Any, schema: Mapping[str, Any] | None = None) -> None:
        if not self.secrets:
            self._masker.learn(value, schema)

    def payload(self, value: Any, schema: Mapping[str, Any] | None = None) -> Any:
        if not self.payloads:
            return HIDDEN if value is not None else None
        return value if self.secrets else self._masker.value(value, schema)

    def text(self, text: str | None) -> str:
        if not text or self.secrets:
            return text or ""
        return self._masker.text(text) if self.payloads else HIDDEN


def refuse_prying(query: Query, visitor: Visitor) -> None:
    """A search must not find out, guess by guess, what its visitor may not read."""
    for term in query.terms:
        if term.field in {"args", "result"} and not visitor.may("payload.view"):
            raise InvalidError(f"Your role may not search in {term.field}.", field="q")
        secret = any(SECRET.search(name) for name in term.path)
        if secret and not visitor.may("payload.secret"):
            raise InvalidError(f"{term.field}.{'.'.join(term.path)} is a secret.", field="q")
