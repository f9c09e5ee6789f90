"""Calls and graphs as the JSON that the SQL function `submit` reads."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypedDict
from uuid import UUID

from holdfast.definitions.graphs import Graph
from holdfast.definitions.submit_body import work_body
from holdfast.definitions.tasks import Call
from holdfast.errors import InvalidError


class Say(TypedDict, total=False):
    """What a caller may say about a job besides what it does."""

    key: str | None
    unique: str | None
    owner: str | None
    priority: int | None
    delay: timedelta | None
    run_at: datetime | None
    expires_at: datetime | None
    labels: dict[str, str] | None
    limit_key: str | None
    debounce: timedelta | None
    throttle: timedelta | None
    batch: UUID | None
    check: bool


@dataclass(frozen=True, kw_only=True)
class Options:
    """The same, checked."""

    key: str | None = None
    unique: str | None = None
    owner: str | None = None
    priority: int | None = None
    delay: timedelta | None = None
    run_at: datetime | None = None
    expires_at: datetime | None = None
    labels: dict[str, str] | None = None
    limit_key: str | None = None
    debounce: timedelta | None = None
    throttle: timedelta | None = None
    batch: UUID | None = None
    check: bool = False

    def __post_init__(self) -> None:
        for name in ("run_at", "expires_at"):
            moment: datetime | None = getattr(self, name)
            if moment is not None and moment.tzinfo is None:
                raise InvalidError(f"{name} has no time zone.", fix="Use an aware datetime.", field=name)
        if self.delay is not None and self.run_at is not None:
            raise InvalidError("Give delay or run_at, not both.", field="delay")


def job_body(work: Call[Any] | Graph, options: Options) -> dict[str, Any]:
    body: dict[str, Any] = {
        "key": options.key,
        "unique_key": options.unique,
        "owner": options.owner,
        "priority": options.priority,
        "delay_s": _seconds(options.delay),
        "run_at": options.run_at,
        "expires_at": options.expires_at,
        "labels": options.labels,
        "limit_key": options.limit_key,
        "debounce_s": _seconds(options.debounce),
        "throttle_s": _seconds(options.throttle),
        "batch": options.batch,
        "check": options.check or None,
    }
    body = {name: value for name, value in body.items() if value is not None}
    return {**work_body(work), **body}


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else span.total_seconds()
