"""One lease that the heartbeat process renews."""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.engine.leases import Lease
from holdfast.worker import heartbeat_protocol as protocol

RENEW_AFTER_LEASE_SHARE: Final = 0.25
MAX_CONNECT_DELAY_S: Final = 1.0  # most tasks end earlier and need no renewal


class LeaseRecord(NamedTuple):
    """A lease that the heartbeat process renews, with the time of its last renewal."""

    # The fields stay packed: most leases are dropped again before anything reads them.
    record: tuple[bytes, float, float, int]
    received_at: float
    renewed_at: float

    @property
    def lease(self) -> Lease:
        return protocol.decode_lease_key(self.record[0])

    @property
    def lease_duration_s(self) -> float:
        return self.record[1]

    @property
    def time_limit_at(self) -> float:
        return self.received_at + self.record[2]

    @property
    def place(self) -> int:
        return self.record[3]

    @property
    def is_in_child_process(self) -> bool:
        return self.place == protocol.PLACE_CHILD

    @property
    def renewal_due_at(self) -> float:
        return self.renewed_at + self.lease_duration_s * RENEW_AFTER_LEASE_SHARE

    @property
    def connect_due_at(self) -> float:
        """When to open the connection for the renewal: long before the renewal is due."""
        return min(self.received_at + MAX_CONNECT_DELAY_S, (self.received_at + self.renewal_due_at) / 2)
