"""Build the JSON requests that the SQL functions `submit` and `add_tasks` read, from calls and graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.definitions.graphs import RESULT_REFERENCE_KEY, Graph, Node, find_result_references
from holdfast.definitions.payloads import encode_payload
from holdfast.definitions.request_options import merge_request_options
from holdfast.definitions.tasks import Call, RetryPolicy, Task
from holdfast.errors import InvalidError

_DEFAULT_RETRY_POLICY = RetryPolicy()
_DEFAULT_TIMEOUT = timedelta(minutes=10)
_DEFAULT_LEASE = timedelta(seconds=60)
_DEFAULT_MAX_CRASHES = 3
_REFERENCE_MARK = RESULT_REFERENCE_KEY.encode()


def build_work_request(work: Call[Any] | Graph, shared: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Build the submit request of a call or of a graph. `shared` has the fields of the options of `submit`.

    The options of the call itself take precedence over the shared ones.
    """
    if isinstance(work, Call):
        work.mark_used()
        request = _build_task_request(work.adjusted_task, msgspec.Raw(_encode_outer_args(work)))
        return request | merge_request_options(shared or {}, work.request_options)
    if not work.nodes:
        raise InvalidError(f"The graph {work.type!r} has no tasks.", fix="Add a call to it.", field="tasks")
    params = (
        {} if work.params is None else {"params": msgspec.Raw(encode_payload(work.params, what="params"))}
    )
    tasks = [_build_node_request(node) for node in work.nodes.values()]
    return {"type": work.type, **params, "tasks": tasks, **(shared or {})}


def build_uniform_request(
    calls: Sequence[Call[Any]], shared: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]] | None:
    """Build one submit request for all calls, and the arguments of each call as JSON.

    Return None if the calls are of several tasks or have options of their own.
    """
    if not calls:
        return None
    task = calls[0].adjusted_task
    if any(call.adjusted_task is not task or call.request_options for call in calls):
        return None
    args_of_calls = [_encode_outer_args(call).decode() for call in calls]
    for call in calls:
        call.mark_used()
    return {"type": task.name, "queue": task.queue, **build_task_policy(task), **shared}, args_of_calls


def _encode_outer_args(call: Call[Any]) -> bytes:
    """Encode the arguments of a call outside of a graph. Refuse the result of a graph's task in them."""
    args = _encode_args(call)
    if _REFERENCE_MARK in args:
        for name in find_result_references(dict(call.args)):
            raise InvalidError(
                f"The arguments of {call.task.name} have the result of {name!r}, which is a task of a graph.",
                fix=f"Add the call to the same graph: graph.add({call.task.name}(...)).",
                field="args",
            )
    return args


def _build_node_request(node: Node[Any]) -> dict[str, Any]:
    after = [{"name": name, "on_failure": policy} for name, policy in node.after.items()]
    request = {**build_call_request(node.call), **node.call.request_options}
    request |= {"name": node.name, "after": after, "weight": node.weight}
    return request if node.limit_key is None else {**request, "limit_key": node.limit_key}


def build_call_request(call: Call[Any]) -> dict[str, Any]:
    """Build the submit request of one task: its type, queue, arguments and policy."""
    return _build_task_request(call.adjusted_task, msgspec.Raw(_encode_args(call)))


def _build_task_request(task: Task[..., Any], args: msgspec.Raw) -> dict[str, Any]:
    return {"type": task.name, "queue": task.queue, "args": args, **build_task_policy(task)}


def _encode_args(call: Call[Any]) -> bytes:
    return encode_payload(dict(call.args), what=f"args of {call.task.name}")


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
