"""Check the options of a job (`key`, `delay`, `labels`, …) and convert them to fields of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast
from uuid import UUID

from holdfast.definitions.ids import parse_id
from holdfast.definitions.validation import (
    check_aware_datetime,
    check_option_names,
    check_whole_number,
    parse_duration,
)
from holdfast.errors import InvalidError

MIN_PRIORITY, MAX_PRIORITY = -100, 100
# The field of each option in the request.
REQUEST_FIELD_BY_OPTION: Final = {
    "key": "key",
    "unique": "unique_key",
    "owner": "owner",
    "priority": "priority",
    "delay": "delay_s",
    "run_at": "run_at",
    "expires_at": "expires_at",
    "labels": "labels",
    "limit_key": "limit_key",
    "debounce": "debounce_s",
    "throttle": "throttle_s",
    "batch": "batch",
    "check": "check",
}
# Options that one task of a graph, or a child task, can have by itself. The others belong to the whole job.
TASK_REQUEST_FIELDS: Final = frozenset({"priority", "delay_s", "run_at", "expires_at", "limit_key"})


def build_request_options(options: Mapping[str, Any], function: str = "submit") -> dict[str, Any]:
    """Validate the options of a job and convert them to fields of the request."""
    request: dict[str, Any] = {}
    for name, value in options.items():
        if name not in REQUEST_FIELD_BY_OPTION:
            check_option_names([name], REQUEST_FIELD_BY_OPTION, function)
        if value is not None and value is not False:
            request[REQUEST_FIELD_BY_OPTION[name]] = _ENCODERS[name](value, name)
    if "delay_s" in request and "run_at" in request:
        raise InvalidError("Both delay and run_at are set.", fix="Pass one of them.", field="delay")
    return request


def merge_request_options(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the options of `submit` with those of the call itself, which take precedence."""
    if not own:
        return dict(shared)
    merged = {**shared, **own}
    if "delay_s" in own:
        merged.pop("run_at", None)
    elif "run_at" in own:
        merged.pop("delay_s", None)
    if "labels" in shared and "labels" in own:
        merged["labels"] = {**shared["labels"], **own["labels"]}
    return merged


def _encode_text(value: object, field: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, UUID):  # the id of a user or of a row
        return str(value)
    raise InvalidError(
        f"{field} must be a string, got {value!r}.", fix=f"Write {field}=str(...).", field=field
    )


def _encode_priority(value: object, field: str) -> object:
    check_whole_number(value, field, minimum=MIN_PRIORITY, maximum=MAX_PRIORITY)
    return value


def _encode_seconds(value: object, field: str) -> float:
    return parse_duration(value, field).total_seconds()


def _encode_time(value: object, field: str) -> object:
    check_aware_datetime(value, field)
    return value


def _encode_labels(value: object, field: str) -> object:
    labels = cast("dict[object, object]", value)
    if isinstance(value, dict) and all(isinstance(text, str) for pair in labels.items() for text in pair):
        return labels
    raise InvalidError(
        f"labels must be a dict of strings, got {value!r}.", fix='Write labels={"team": "blue"}.', field=field
    )


def _encode_batch(value: UUID | str, field: str) -> UUID:
    return parse_id(value, field)


def _encode_check(value: object, field: str) -> bool:
    if value is True:
        return True
    raise InvalidError(f"{field} must be True or False, got {value!r}.", field=field)


_ENCODERS: Final[dict[str, Callable[[Any, str], object]]] = {
    "key": _encode_text,
    "unique": _encode_text,
    "owner": _encode_text,
    "priority": _encode_priority,
    "delay": _encode_seconds,
    "run_at": _encode_time,
    "expires_at": _encode_time,
    "labels": _encode_labels,
    "limit_key": _encode_text,
    "debounce": _encode_seconds,
    "throttle": _encode_seconds,
    "batch": _encode_batch,
    "check": _encode_check,
}
