"""Work that a running task submits: children of its job, or jobs of their own.

Each has a name that a later attempt gives it again, so that an attempt which is repeated adds nothing twice:
the caller's key, or else one made from the task and the arguments. The same call said twice in one attempt
makes two.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from typing import Any, Unpack, cast
from uuid import UUID

import msgspec

from holdfast import tracing
from holdfast.definitions.context import AnyCall, ChildSay
from holdfast.definitions.submit_body import call_body
from holdfast.definitions.tasks import Call
from holdfast.engine.leases import Lease
from holdfast.errors import InvalidError
from holdfast.worker.desk import Desk

FOR_DETACHED = ("owner", "labels")


class Children:
    def __init__(self, desk: Desk, lease: Lease, own_name: str) -> None:
        self._desk = desk
        self._lease = lease
        self._names: dict[str, str] = {str(lease.id): own_name}
        self._said: Counter[str] = Counter()
        # The first child makes the job one of several tasks; those that come at that moment wait for it.
        self._turn = asyncio.Lock()

    async def submit(self, call: AnyCall, **say: Unpack[ChildSay]) -> UUID:
        if not isinstance(call, Call):
            raise InvalidError(f"{call!r} is not the call of a task.", fix="submit(task(...))", field="call")
        call.use()
        body = {**call_body(cast("Any", call)), **_times(say)}
        name = say.get("key") or self._name_of(body)
        if say.get("detached"):
            return await self._detached(body, name, say)
        wrong = [field for field in FOR_DETACHED if say.get(field) is not None]
        if wrong:
            raise InvalidError(
                f"A child has the {wrong[0]} of its job.", fix="Say detached=True.", field=wrong[0]
            )
        body |= {"name": name, "after": [self._known(each) for each in say.get("after", ())]}
        body["weight"] = say.get("weight", 1.0)
        async with self._turn:
            made = await self._desk.add_tasks(self._lease, msgspec.json.encode([body]))
        self._names[str(made[name])] = name
        return made[name]

    async def _detached(self, body: dict[str, Any], name: str, say: ChildSay) -> UUID:
        wrong = [field for field in ("after", "weight") if field in say]
        if wrong:
            raise InvalidError(
                f"A job of its own has no {wrong[0]}.", fix="Leave detached out.", field=wrong[0]
            )
        labels = {**(say.get("labels") or {}), **tracing.here()}
        body |= {"labels": labels} if labels else {}
        body |= {"owner": say.get("owner")} if say.get("owner") is not None else {}
        body["key"] = say.get("key") or f"{self._lease.id}:{name}"
        return await self._desk.submit(self._lease, msgspec.json.encode(body))

    def _name_of(self, body: dict[str, Any]) -> str:
        digest = hashlib.sha256(self._lease.id.bytes + bytes(body["args"])).hexdigest()[:12]
        stem = body["type"].encode()[:150].decode(errors="ignore")  # names are 200 bytes at most
        name = f"{stem}-{digest}"
        self._said[name] += 1
        return name if self._said[name] == 1 else f"{name}-{self._said[name]}"

    def _known(self, parent: UUID | str) -> str:
        return self._names.get(str(parent), str(parent))


def _times(say: ChildSay) -> dict[str, Any]:
    delay, run_at = say.get("delay"), say.get("run_at")
    if delay is not None and run_at is not None:
        raise InvalidError("Give delay or run_at, not both.", field="delay")
    if run_at is not None and run_at.tzinfo is None:
        raise InvalidError("run_at has no time zone.", fix="Use an aware datetime.", field="run_at")
    said = {
        "delay_s": delay.total_seconds() if delay is not None else None,
        "run_at": run_at,
        "priority": say.get("priority"),
    }
    return {name: value for name, value in said.items() if value is not None}
