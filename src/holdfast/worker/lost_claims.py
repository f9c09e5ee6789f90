"""Claims whose responses were lost: this worker may hold leases that it does not know of.

The worker chose the nonce of each claim, so it can release exactly these tasks. The statement of the claim
may still be running when its connection is already lost, for example while it waits for a lock. So the
release is repeated with growing pauses until it finds tasks, or until the leases would have ended anyway.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.engine import leases
from holdfast.engine.connection import Connection

FIRST_RELEASE_PAUSE_S = 0.1
MAX_RELEASE_PAUSE_S = 10.0
MIN_LEASE_S = 60.0  # the default lease: the leases of a lost response are unknown


@dataclass(slots=True)
class LostClaim:
    sent_at: float
    pause_s: float = FIRST_RELEASE_PAUSE_S
    next_release_at: float = 0.0


class LostClaims:
    """The lost claims of one worker, by nonce."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._claims: dict[int, LostClaim] = {}
        self.longest_lease_s = MIN_LEASE_S  # of the leases that this worker has seen

    def __len__(self) -> int:
        return len(self._claims)

    def add_claim(self, nonce: int, sent_at: float) -> None:
        self._claims[nonce] = LostClaim(sent_at)

    @property
    def seconds_until_release(self) -> float | None:
        """Seconds until the next release is due, or None without lost claims."""
        if not self._claims:
            return None
        return min(claim.next_release_at for claim in self._claims.values()) - time.monotonic()

    async def release_due_tasks(self, connection: Connection) -> bool:
        """Release the tasks of claims whose turn has come. Return whether tasks were released."""
        now = time.monotonic()
        due = [nonce for nonce, claim in self._claims.items() if now >= claim.next_release_at]
        return await self._release_tasks(connection, due) if due else False

    async def release_all_tasks(self, connection: Connection) -> bool:
        """Release the tasks of all lost claims now. Return whether tasks were released."""
        return await self._release_tasks(connection, list(self._claims)) if self._claims else False

    async def _release_tasks(self, connection: Connection, nonces: Sequence[int]) -> bool:
        released = await leases.release_unreceived_tasks(connection, self._worker, nonces)
        now = time.monotonic()
        for nonce in nonces:
            claim = self._claims[nonce]
            if nonce in released or now >= claim.sent_at + self.longest_lease_s:
                del self._claims[nonce]
            else:
                claim.next_release_at = now + claim.pause_s
                claim.pause_s = min(claim.pause_s * 2, MAX_RELEASE_PAUSE_S)
        return bool(released)
