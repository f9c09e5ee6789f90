"""Calls and graphs as the JSON that the SQL function `submit` reads."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypedDict

import msgspec

from holdfast.definitions import Call, Retry, Task
from holdfast.errors import InvalidError
from holdfast.graphs import Graph, Node
from holdfast.payloads import to_json

_DEFAULT_RETRY = Retry()
_DEFAULT_TIMEOUT = timedelta(minutes=10)
_DEFAULT_LEASE = timedelta(seconds=60)


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
        "delay_s": options.delay.total_seconds() if options.delay is not None else None,
        "run_at": options.run_at,
        "expires_at": options.expires_at,
        "labels": options.labels,
    }
    body = {name: value for name, value in body.items() if value is not None}
    if isinstance(work, Graph):
        if not work.nodes:
            raise InvalidError(f"The graph {work.type} has no tasks.", fix="Add a call to it.", field="tasks")
        if work.params is not None:
            body["params"] = msgspec.Raw(to_json(work.params, what="params"))
        return {"type": work.type, **body, "tasks": [_node_body(node) for node in work.nodes.values()]}
    work.use()
    return {**_call_body(work), **body}


def _node_body(node: Node[Any]) -> dict[str, Any]:
    after = [{"name": name, "on_failure": policy} for name, policy in node.after.items()]
    return {**_call_body(node.call), "name": node.name, "after": after, "weight": node.weight}


def _call_body(call: Call[Any]) -> dict[str, Any]:
    args = to_json(dict(call.args), what=f"args of {call.task.name}")
    return {"type": call.task.name, "queue": call.task.queue, "args": msgspec.Raw(args), **_policy(call.task)}


def _policy(task: Task[..., Any]) -> dict[str, Any]:
    """Only what differs from the engine's defaults, which keeps rows and lanes few."""
    policy: dict[str, Any] = {"priority": task.priority} if task.priority else {}
    if task.timeout != _DEFAULT_TIMEOUT:
        policy["timeout_s"] = task.timeout.total_seconds()
    if task.lease != _DEFAULT_LEASE:
        policy["lease_s"] = task.lease.total_seconds()
    if task.retry != _DEFAULT_RETRY:
        policy |= {
            "attempts": task.retry.retries + 1,
            "base_s": task.retry.base.total_seconds(),
            "cap_s": task.retry.cap.total_seconds(),
            "jitter": task.retry.jitter,
        }
    return policy
