"""A lease inside the user's own transaction, on any kind of connection that `borrowed` knows."""

from __future__ import annotations

import msgspec

from holdfast.engine.borrowed import Ask
from holdfast.engine.leases import Lease

_ASSERT = """
select 'held' from (select {}::jsonb as l) as given,
lateral holdfast.assert_lease((l ->> 'id')::uuid, (l ->> 'attempt')::int, (l ->> 'nonce')::bigint)
"""
_COMPLETE = """
select 'done' from (select {}::jsonb as l) as given,
lateral holdfast.complete_task(
  (l ->> 'id')::uuid, (l ->> 'attempt')::int, (l ->> 'nonce')::bigint, l -> 'output')
"""


def asserting(lease: Lease) -> Ask[None]:
    """Go on only while the lease is held; it is then held until the transaction ends."""
    return Ask(_ASSERT, msgspec.json.encode(_plain(lease)), lambda _: None)


def completing(lease: Lease, output: bytes) -> Ask[None]:
    """The task has succeeded if the transaction commits."""
    said = {**_plain(lease), "output": msgspec.Raw(output)}
    return Ask(_COMPLETE, msgspec.json.encode(said), lambda _: None)


def _plain(lease: Lease) -> dict[str, object]:
    return {"id": lease.id, "attempt": lease.attempt, "nonce": lease.nonce}
