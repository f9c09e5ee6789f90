"""What a visitor may not read does not leave the server.

Three layers: without `payload.view` no payload at all; without `payload.secret` every field whose name says
that it is a secret, or that its task's schema marks as one, is masked; and the values of such fields are
masked wherever else they turn up in the same job: errors, tracebacks, logs, progress, results.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast.dashboard.roles import Visitor
from holdfast.dashboard.shapes import listed, mapped
from holdfast.errors import InvalidError
from holdfast.search import Query

MASK: Final = "•••"
HIDDEN: Final = "(hidden for your role)"
SECRET: Final = re.compile(
    r"passw|passphrase|secret|token|api[_-]?key|^key$|private[_-]?key|access[_-]?key|authori[sz]ation|cookie"
    r"|credential|bearer|signature",
    re.IGNORECASE,
)
_ASSIGNED: Final = re.compile(
    r"""(?ix) (\b[\w-]*(?:passw\w*|passphrase|secret|token|api[_-]?key|authori[sz]ation|cookie|credentials?)
    [\w-]*["']?\s*[=:]\s*(?:bearer\s+|basic\s+)?["']?) ([^\s"',;)}\]]{3,})"""
)
_URL: Final = re.compile(r"(\w+://[^/\s:@]+:)[^/\s@]+(@)")
_SHORTEST: Final = 4  # shorter values are masked in their field only: they would blot out half of a text


class Redactor:
    """For one visitor and one job. `learn` the payloads first, then ask for texts."""

    def __init__(self, visitor: Visitor) -> None:
        self.payloads = visitor.may("payload.view")
        self.secrets = visitor.may("payload.secret")
        self._values: set[str] = set()

    def learn(self, value: Any, schema: Mapping[str, Any] | None = None) -> None:
        if not self.secrets:
            self._values.update(v for v in _secret_values(value, _marked(schema)) if len(v) >= _SHORTEST)

    def payload(self, value: Any, schema: Mapping[str, Any] | None = None) -> Any:
        if not self.payloads:
            return HIDDEN if value is not None else None
        if self.secrets:
            return value
        self.learn(value, schema)
        return self._masked(value, _marked(schema))

    def text(self, text: str | None) -> str:
        if not text or self.secrets:
            return text or ""
        if not self.payloads:
            return HIDDEN
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, MASK)
        return _URL.sub(rf"\1{MASK}\2", _ASSIGNED.sub(rf"\1{MASK}", text))

    def _masked(self, value: Any, marked: frozenset[str]) -> Any:
        if isinstance(value, dict):
            return {
                name: MASK
                if _is_secret(name, marked) and inner not in (None, "")
                else self._masked(inner, marked)
                for name, inner in mapped(value).items()
            }
        if isinstance(value, list):
            return [self._masked(inner, marked) for inner in listed(value)]
        return self.text(value) if isinstance(value, str) else value


def _is_secret(name: str, marked: frozenset[str]) -> bool:
    return name in marked or SECRET.search(name) is not None


def _marked(schema: Mapping[str, Any] | None) -> frozenset[str]:
    """Fields that a schema calls secret, at any depth."""
    return frozenset(_walk(schema, 0)) if schema else frozenset()


def _walk(schema: Any, depth: int) -> Iterator[str]:
    if not isinstance(schema, dict) or depth > 12:
        return
    said = mapped(schema)
    for name, field in mapped(said.get("properties") or {}).items():
        if isinstance(field, dict):
            about = mapped(field)
            if about.get("format") == "password" or about.get("writeOnly") or about.get("x-secret"):
                yield name
        yield from _walk(field, depth + 1)
    for inner in mapped(said.get("$defs") or {}).values():
        yield from _walk(inner, depth + 1)


def _secret_values(value: Any, marked: frozenset[str], inside: bool = False) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in mapped(value).items():
            yield from _secret_values(inner, marked, inside or _is_secret(name, marked))
    elif isinstance(value, list):
        for inner in listed(value):
            yield from _secret_values(inner, marked, inside)
    elif inside and isinstance(value, (str, int, float)) and not isinstance(value, bool):
        yield str(value)


def refuse_prying(query: Query, visitor: Visitor) -> None:
    """A search must not find out, guess by guess, what its visitor may not read."""
    for term in query.terms:
        if term.field in {"args", "result"} and not visitor.may("payload.view"):
            raise InvalidError(f"Your role may not search in {term.field}.", field="q")
        secret = any(SECRET.search(name) for name in term.path)
        if secret and not visitor.may("payload.secret"):
            raise InvalidError(f"{term.field}.{'.'.join(term.path)} is a secret.", field="q")
