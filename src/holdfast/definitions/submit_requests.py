"""Build the JSON requests that the SQL functions `submit` and `add_tasks` read, from calls and graphs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from holdfast.definitions.graphs import Graph, Node
from holdfast.definitions.payloads import encode_payload
from holdfast.definitions.tasks import Call, RetryPolicy, Task
from holdfast.errors import InvalidError

_DEFAULT_RETRY_POLICY = RetryPolicy()
_DEFAULT_TIMEOUT = timedelta(minutes=10)
_DEFAULT_LEASE = timedelta(seconds=60)
_DEFAULT_MAX_CRASHES = 3


def build_work_request(work: Call[Any] | Graph) -> dict[str, Any]:
    """Build the part of a submit request with the task of a call, or with the tasks of a graph."""
    if isinstance(work, Call):
        work.mark_used()
        return build_call_request(work)
    if not work.nodes:
        raise InvalidError(f"The graph {work.type!r} has no tasks.", fix="Add a call to it.", field="tasks")
    params = (
        {} if work.params is None else {"params": msgspec.Raw(encode_payload(work.params, what="params"))}
    )
    return {"type": work.type, **params, "tasks": [_build_node_request(node) for node in work.nodes.values()]}


def _build_node_request(node: Node[Any]) -> dict[str, Any]:
    after = [{"name": name, "on_failure": policy} for name, policy in node.after.items()]
    request = {**build_call_request(node.call), "name": node.name, "after": after, "weight": node.weight}
    return request if node.limit_key is None else {**request, "limit_key": node.limit_key}


def build_call_request(call: Call[Any]) -> dict[str, Any]:
    """Build the submit request of one task: its type, queue, arguments and policy."""
    args = encode_payload(dict(call.args), what=f"args of {call.task.name}")
    return {
        "type": call.task.name,
        "queue": call.task.queue,
        "args": msgspec.Raw(args),
        **build_task_policy(call.task),
    }


def build_task_policy(task: Task[..., Any]) -> dict[str, Any]:
    """Build the part of a submit request with the options that differ from the engine's defaults.

    Leaving out the defaults keeps rows short and lanes few.
    """
    policy: dict[str, Any] = {"priority": task.priority} if task.priority else {}
    if task.timeout != _DEFAULT_TIMEOUT:
        policy["timeout_s"] = task.timeout.total_seconds()
    if task.lease != _DEFAULT_LEASE:
        policy["lease_s"] = task.lease.total_seconds()
    if task.max_crashes != _DEFAULT_MAX_CRASHES:
        policy["crashes"] = task.max_crashes
    if task.retry != _DEFAULT_RETRY_POLICY:
        policy |= {
            "attempts": task.retry.retries + 1,
            "base_s": task.retry.base.total_seconds(),
            "cap_s": task.retry.cap.total_seconds(),
            "jitter": task.retry.jitter,
        }
    return policy
