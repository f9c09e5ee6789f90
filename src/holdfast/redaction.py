"""Secrets hidden from those who only look: by the names of members, and wherever they turn up again.

A token in the arguments of a job is often in its traceback as well. So the values of members that are named
like secrets, or that a schema marks as such, are learnt first and then masked in every text of the same job;
passwords in addresses and what is assigned to such a name in a text are masked too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

MASK: Final = "•••"
_NAMES: Final = (
    r"passw\w*|passphrase|secret|token|(?:api|private|access)[_-]?key|authori[sz]ation|cookie|credential"
    r"|bearer|signature"
)
SECRET: Final = re.compile(rf"{_NAMES}|^key$", re.IGNORECASE)
_ASSIGNED: Final = re.compile(
    rf"""([\w-]*(?:{_NAMES})[\w-]*["']?\s*[=:]\s*(?:bearer\s+|basic\s+)?["']?)([^\s"',;)}}\]]{{3,}})""",
    re.IGNORECASE,
)
_ADDRESS: Final = re.compile(r"(\w+://[^/\s:@]*:)[^/\s@]+(@)")
_SHORTEST: Final = 4  # a shorter value is masked in its own place only: it would blot out half of a text
_DEEPEST: Final = 12  # of a schema


class Masker:
    """For one job. `learn` its payloads first, then ask for values and texts."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def learn(self, value: Any, schema: Mapping[str, Any] | None = None) -> None:
        self._known.update(v for v in _secret_values(value, _marked(schema)) if len(v) >= _SHORTEST)

    def value(self, value: Any, schema: Mapping[str, Any] | None = None) -> Any:
        """The same value with its secrets masked, those learnt before too."""
        self.learn(value, schema)
        return self._masked(value, _marked(schema))

    def text(self, text: str) -> str:
        for known in sorted(self._known, key=len, reverse=True):
            text = text.replace(known, MASK)
        return _ADDRESS.sub(rf"\1{MASK}\2", _ASSIGNED.sub(rf"\1{MASK}", text))

    def _masked(self, value: Any, marked: frozenset[str]) -> Any:
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            return {
                name: MASK if _hides(name, inner, marked) else self._masked(inner, marked)
                for name, inner in members.items()
            }
        if isinstance(value, (list, tuple)):
            return [self._masked(inner, marked) for inner in cast("Sequence[Any]", value)]
        return self.text(value) if isinstance(value, str) else value


def _hides(name: str, value: Any, marked: frozenset[str]) -> bool:
    return _is_secret(name, marked) and value not in (None, "")


def _is_secret(name: str, marked: frozenset[str]) -> bool:
    return name in marked or SECRET.search(str(name)) is not None


def _secret_values(value: Any, marked: frozenset[str], inside: bool = False) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in cast("dict[str, Any]", value).items():
            yield from _secret_values(inner, marked, inside or _is_secret(name, marked))
    elif isinstance(value, (list, tuple)):
        for inner in cast("Sequence[Any]", value):
            yield from _secret_values(inner, marked, inside)
    elif inside and isinstance(value, (str, int, float)) and not isinstance(value, bool):
        yield str(value)


def _marked(schema: Mapping[str, Any] | None) -> frozenset[str]:
    """Fields that a schema calls secret, at any depth."""
    return frozenset(_walk(schema, 0)) if schema else frozenset()


def _walk(schema: Any, depth: int) -> Iterator[str]:
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return
    said = cast("dict[str, Any]", schema)
    for name, field in cast("dict[str, Any]", said.get("properties") or {}).items():
        if isinstance(field, dict):
            about = cast("dict[str, Any]", field)
            if about.get("format") == "password" or about.get("writeOnly") or about.get("x-secret"):
                yield name
        yield from _walk(field, depth + 1)
    for inner in cast("dict[str, Any]", said.get("$defs") or {}).values():
        yield from _walk(inner, depth + 1)
