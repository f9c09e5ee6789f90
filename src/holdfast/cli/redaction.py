"""Secrets in payloads, hidden before a program or a person without the right sees them."""

from __future__ import annotations

import re
from typing import Any, cast

from holdfast.settings import HIDDEN

SECRET = re.compile(
    r"pass(word|wd|phrase)?$|secret|token|(api|private|access)_?key|authorization|cookie|credential",
    re.IGNORECASE,
)
LONGEST = 4000


def redacted(value: Any, *, longest: int = LONGEST) -> Any:
    """The same value with what is named like a secret as dots, and long texts cut."""
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {name: _member(name, inner, longest) for name, inner in members.items()}
    if isinstance(value, (list, tuple)):
        return [redacted(inner, longest=longest) for inner in cast("list[Any]", value)]
    if isinstance(value, str) and len(value) > longest:
        return f"{value[:longest]}… ({len(value):,} characters)"
    return value


def _member(name: str, value: Any, longest: int) -> Any:
    return HIDDEN if SECRET.search(str(name)) and value is not None else redacted(value, longest=longest)
