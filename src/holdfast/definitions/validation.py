"""Check the arguments of callers before anything is sent. Each error names the argument and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from datetime import datetime, timedelta

from holdfast.errors import InvalidError


def check_duration(value: object, field: str) -> None:
    """Raise InvalidError if a duration is not a `timedelta`."""
    if isinstance(value, timedelta):
        return
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    seconds = f"{value:g}" if is_number else "30"
    raise InvalidError(
        f"{field} must be a timedelta, got {value!r}.",
        fix=f"Write {field}=timedelta(seconds={seconds}).",
        field=field,
    )


def check_aware_datetime(value: object, field: str) -> None:
    """Raise InvalidError if a time is not a `datetime` with a time zone."""
    if not isinstance(value, datetime):
        raise InvalidError(
            f"{field} must be a datetime, got {value!r}.",
            fix=f"Write {field}=datetime(2026, 1, 31, 9, 0, tzinfo=UTC).",
            field=field,
        )
    if value.tzinfo is None:
        raise InvalidError(
            f"{field} has no time zone.", fix="Pass a datetime with tzinfo, such as tzinfo=UTC.", field=field
        )


def check_option_names(options: Iterable[str], known: Iterable[str], function: str) -> None:
    """Raise InvalidError for an unknown option and suggest the most similar known option."""
    known = list(known)
    for name in options:
        if name not in known:
            raise InvalidError(
                f"{function} has no option {name!r}{format_name_suggestion(name, known)}",
                fix=f"Options: {', '.join(known)}.",
                field=name,
            )


def format_name_suggestion(name: str, known: Iterable[str]) -> str:
    """Format the end of an error about an unknown name: `; did you mean 'priority'?`, or a full stop."""
    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.55)
    return f"; did you mean {nearest[0]!r}?" if nearest else "."
