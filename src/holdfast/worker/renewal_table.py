"""The renewals of leases that child processes hold, in memory that the heartbeat process shares.

A worker whose GIL is held learns of no renewals. The heartbeat process goes on renewing, and it writes here
when it last did. So the lease guard does not end the children of such a worker.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable

from holdfast.worker.lease_guard_process import DEADLINE_STRUCT, RENEWAL_STRUCT, RENEWALS_OFFSET


class RenewalTable:
    """Written by the heartbeat process. Entries are overwritten in turn: lease keys are never used again."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, 0)
        self._entry_count = (len(self._memory) - RENEWALS_OFFSET) // RENEWAL_STRUCT.size
        self._entries: dict[bytes, int] = {}  # by lease key, the oldest first

    def record_renewals(self, lease_keys: Iterable[bytes], renewed_at: float) -> None:
        for key in lease_keys:
            entry = self._entries.get(key)
            if entry is None:
                self._add_entry(key, renewed_at)
            else:
                instant_offset = RENEWAL_STRUCT.size - DEADLINE_STRUCT.size
                offset = RENEWALS_OFFSET + entry * RENEWAL_STRUCT.size + instant_offset
                DEADLINE_STRUCT.pack_into(self._memory, offset, renewed_at)

    def _add_entry(self, key: bytes, renewed_at: float) -> None:
        entry = len(self._entries)
        if entry == self._entry_count:
            entry = self._entries.pop(next(iter(self._entries)))
        self._entries[key] = entry
        # The key comes last, so that nobody reads the new instant under the old key.
        offset = RENEWALS_OFFSET + entry * RENEWAL_STRUCT.size
        RENEWAL_STRUCT.pack_into(self._memory, offset, bytes(len(key)), renewed_at)
        RENEWAL_STRUCT.pack_into(self._memory, offset, key, renewed_at)
