"""Submit work from a running task: child tasks of its job, or separate jobs.

Each child has a name that a later attempt computes again, so that a repeated attempt adds nothing twice: the
key that the caller passes, or a hash of the task type and the arguments. Submitting the same call twice in
one attempt adds two children.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from typing import Any, Final, cast
from uuid import UUID

import msgspec

from holdfast import tracing
from holdfast.definitions.call_options import check_request_fields
from holdfast.definitions.context_types import ChildTaskOptions, TaskCall
from holdfast.definitions.request_options import build_request_options, merge_request_options
from holdfast.definitions.submit_requests import build_call_request
from holdfast.definitions.tasks import Call, build_not_a_call_error
from holdfast.definitions.validation import check_option_names
from holdfast.engine.leases import Lease
from holdfast.errors import InvalidError
from holdfast.worker.gateway import EngineGateway

DETACHED_JOB_OPTIONS: Final = ("owner", "labels")
CHILD_TASK_OPTIONS: Final = ("after", "weight")
MAX_TYPE_BYTES_IN_NAME: Final = 150  # with the hash and a counter a name stays within 200 bytes


class ChildTaskSubmitter:
    """Submits child tasks and detached jobs for one attempt."""

    def __init__(self, gateway: EngineGateway, lease: Lease, own_name: str) -> None:
        self._gateway = gateway
        self._lease = lease
        self._names_by_id: dict[str, str] = {str(lease.id): own_name}
        self._name_counts: Counter[str] = Counter()
        # The first child turns the job into one of several tasks. Children submitted at the same time wait.
        self._submit_lock = asyncio.Lock()

    async def submit(self, call: TaskCall, options: ChildTaskOptions) -> UUID:
        if not isinstance(call, Call):
            raise build_not_a_call_error("ctx.submit", call)
        own: Call[Any] = cast("Any", call)
        own.mark_used()
        check_request_fields(
            own.request_options, "of a child task", "Pass it to ctx.submit(..., detached=True)."
        )
        timing = merge_request_options(_build_timing_fields(options), own.request_options)
        body = {**build_call_request(own), **timing}
        name = options.get("key") or self._compute_child_name(body)
        if options.get("detached"):
            return await self._submit_detached(body, name, options)
        for option in DETACHED_JOB_OPTIONS:
            if options.get(option) is not None:
                raise InvalidError(
                    f"A child task uses the {option} of its job.", fix="Pass detached=True.", field=option
                )
        body |= {
            "name": name,
            "after": [self._get_dependency_name(parent) for parent in options.get("after", ())],
        }
        body["weight"] = options.get("weight", 1.0)
        async with self._submit_lock:
            ids = await self._gateway.add_child_tasks(self._lease, msgspec.json.encode([body]))
        self._names_by_id[str(ids[name])] = name
        return ids[name]

    async def _submit_detached(self, body: dict[str, Any], name: str, options: ChildTaskOptions) -> UUID:
        for option in CHILD_TASK_OPTIONS:
            if option in options:
                raise InvalidError(
                    f"A detached job cannot have {option}.", fix="Leave detached out.", field=option
                )
        labels = {**(options.get("labels") or {}), **tracing.get_current_trace_labels()}
        body |= {"labels": labels} if labels else {}
        body |= {"owner": options.get("owner")} if options.get("owner") is not None else {}
        body["key"] = options.get("key") or f"{self._lease.id}:{name}"
        return await self._gateway.submit_detached_job(self._lease, msgspec.json.encode(body))

    def _compute_child_name(self, body: dict[str, Any]) -> str:
        digest = hashlib.sha256(self._lease.id.bytes + bytes(body["args"])).hexdigest()[:12]
        task_type = body["type"].encode()[:MAX_TYPE_BYTES_IN_NAME].decode(errors="ignore")
        name = f"{task_type}-{digest}"
        self._name_counts[name] += 1
        return name if self._name_counts[name] == 1 else f"{name}-{self._name_counts[name]}"

    def _get_dependency_name(self, parent: UUID | str) -> str:
        return self._names_by_id.get(str(parent), str(parent))


def _build_timing_fields(options: ChildTaskOptions) -> dict[str, Any]:
    check_option_names(options, ChildTaskOptions.__annotations__, "ctx.submit")
    names = ("delay", "run_at", "priority")
    return build_request_options({name: options.get(name) for name in names}, "ctx.submit")
