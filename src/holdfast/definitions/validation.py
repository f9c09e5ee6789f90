"""Check the arguments of callers before anything is sent. Each error names the argument and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from datetime import datetime, timedelta

from holdfast.errors import InvalidError


def parse_duration(value: object, field: str) -> timedelta:
    """Return a duration that was passed as a `timedelta` or as a number of seconds."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return timedelta(seconds=value)
        except (OverflowError, ValueError):  # too large, or NaN
            pass
    raise InvalidError(
        f"{field} must be a timedelta or a number of seconds, got {value!r}.",
        fix=f"Write {field}=30 or {field}=timedelta(seconds=30).",
        field=field,
    )


def check_whole_number(value: object, field: str, *, minimum: int, maximum: int | None = None) -> None:
    """Raise InvalidError if a value is not a whole number in the range."""
    limits = f"from {minimum} to {maximum}" if maximum is not None else f"of at least {minimum}"
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidError(
            f"{field} must be a whole number {limits}, got {value!r}.",
            fix=f"Write {field}={max(minimum, 3)}.",
            field=field,
        )
    if value < minimum or (maximum is not None and value > maximum):
        raise InvalidError(f"{field} must be a whole number {limits}, got {value}.", field=field)


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
