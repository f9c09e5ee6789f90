"""Build statements that check a lease or complete a task in the user's own transaction."""

from __future__ import annotations

import msgspec

from holdfast.engine.caller_connection import JsonStatement
from holdfast.engine.leases import Lease

_ASSERT_LEASE = """
select 'held' from (select {}::jsonb as l) as input,
lateral holdfast.assert_lease((l ->> 'id')::uuid, (l ->> 'attempt')::int, (l ->> 'nonce')::bigint)
"""
_COMPLETE_TASK = """
select 'done' from (select {}::jsonb as l) as input,
lateral holdfast.complete_task(
  (l ->> 'id')::uuid, (l ->> 'attempt')::int, (l ->> 'nonce')::bigint, l -> 'output')
"""


def build_assert_lease_statement(lease: Lease) -> JsonStatement[None]:
    """Build the statement that locks a lease until the transaction ends, or raises LeaseLostError."""
    return JsonStatement(_ASSERT_LEASE, msgspec.json.encode(_lease_to_dict(lease)), lambda _: None)


def build_complete_task_statement(lease: Lease, output: bytes) -> JsonStatement[None]:
    """Build the statement that completes a task when the caller's transaction commits."""
    argument = {**_lease_to_dict(lease), "output": msgspec.Raw(output)}
    return JsonStatement(_COMPLETE_TASK, msgspec.json.encode(argument), lambda _: None)


def _lease_to_dict(lease: Lease) -> dict[str, object]:
    return {"id": lease.id, "attempt": lease.attempt, "nonce": lease.nonce}
