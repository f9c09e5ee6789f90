"""Secrets hidden from programs that only look: by the names of members, and wherever they turn up again.

A token in the arguments of a job is often in its traceback as well. So the values of members that are named
like secrets are collected first, and then masked in every text of the same answer; passwords in addresses and
what is assigned to such a name in a text are masked too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

from holdfast.settings import HIDDEN

_NAMES = (
    r"passw|passphrase|secret|token|(?:api|private|access)[_-]?key|authori[sz]ation|cookie|credential|bearer"
)
SECRET = re.compile(_NAMES, re.IGNORECASE)
_ASSIGNED = re.compile(
    rf"""([\w-]*(?:{_NAMES})[\w-]*["']?\s*[=:]\s*(?:bearer\s+|basic\s+)?["']?)([^\s"',;)}}\]]{{3,}})""",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"(\w+://[^/\s:@]*:)[^/\s@]+(@)")
SHORTEST = 4  # a shorter value is masked in its own place only: it would blot out half of a text
LONGEST = 4000


def redacted(value: Any) -> Any:
    """The same value without secrets, and with long texts cut."""
    known = sorted({text for text in _values(value) if len(text) >= SHORTEST}, key=len, reverse=True)
    return _masked(value, known)


def _values(value: Any, *, secret: bool = False) -> Iterator[str]:
    """Every text below a member that is named like a secret."""
    if isinstance(value, dict):
        for name, inner in cast("dict[str, Any]", value).items():
            yield from _values(inner, secret=secret or bool(SECRET.search(str(name))))
    elif isinstance(value, (list, tuple)):
        for inner in cast("list[Any]", value):
            yield from _values(inner, secret=secret)
    elif secret and isinstance(value, (str, int)) and not isinstance(value, bool):
        yield str(value)


def _masked(value: Any, known: list[str]) -> Any:
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {name: _member(name, inner, known) for name, inner in members.items()}
    if isinstance(value, (list, tuple)):
        return [_masked(inner, known) for inner in cast("list[Any]", value)]
    return _text(value, known) if isinstance(value, str) else value


def _member(name: str, value: Any, known: list[str]) -> Any:
    return HIDDEN if SECRET.search(str(name)) and value is not None else _masked(value, known)


def _text(text: str, known: list[str]) -> str:
    for secret in known:
        text = text.replace(secret, HIDDEN)
    text = _ADDRESS.sub(rf"\1{HIDDEN}\2", _ASSIGNED.sub(rf"\1{HIDDEN}", text))
    return f"{text[:LONGEST]}… ({len(text):,} characters)" if len(text) > LONGEST else text
