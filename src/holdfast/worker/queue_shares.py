"""Choose which queues to claim from next, and for how many slots: per-queue limits of this worker, and
weights.

A queue that returned less than requested is left out until there is news. Queues with much less room than the
worker are requested by themselves, so that they do not make every request small.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.errors import InvalidError

_QUEUE_SHARE_PATTERN = re.compile(r"(?P<queue>[^:*].*?)(?::(?P<max_running>\d+))?(?:\*(?P<weight>\d+))?")


@dataclass(frozen=True)
class QueueShare:
    """The limit and the weight of one queue in a worker.

    The worker runs at most `max_running` tasks of the queue at once (None: no limit) and claims from it
    `weight` times as often as from a queue with weight 1.

    >>> from holdfast import Client, QueueShare, Worker, task
    >>> @task(queue="mail")
    ... def send(to: str) -> None: ...
    >>> worker = Worker(Client(), tasks=[send], queues=["default", QueueShare("mail", max_running=2)])
    """

    queue: str
    max_running: int | None = None
    weight: int = 1

    def __post_init__(self) -> None:
        if not self.queue or (self.max_running is not None and self.max_running < 1) or self.weight < 1:
            raise InvalidError(
                f"Queue {self.queue!r}: max_running and weight must be at least 1.", field="queues"
            )


def parse_queue_shares(text: str) -> list[QueueShare]:
    """Parse queue shares such as `browser:4,default:8*3,mail`.

    At most 4 tasks of `browser` and 8 of `default` run at once; `default` is served three times as often.
    """
    shares: list[QueueShare] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _QUEUE_SHARE_PATTERN.fullmatch(part)
        if match is None:
            raise InvalidError(
                f"{part!r} is not a valid queue entry.", fix="Write name, name:4 or name:4*3.", field="queues"
            )
        max_running, weight = match["max_running"], match["weight"]
        shares.append(
            QueueShare(match["queue"].strip(), int(max_running) if max_running else None, int(weight or 1))
        )
    names = [share.queue for share in shares]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InvalidError(f"Queue {repeated[0]!r} is listed twice.", field="queues")
    return shares


class QueueSelector:
    """Selects the queues of each claim by limits and weights.

    `plain` means that no queue has a limit or a weight.
    """

    def __init__(self, shares: Iterable[QueueShare | str]) -> None:
        self.shares = [QueueShare(share) if isinstance(share, str) else share for share in shares]
        self.queues = [share.queue for share in self.shares]
        self.plain = all(share.max_running is None and share.weight == 1 for share in self.shares)
        self.running_by_queue: Counter[str] = Counter()  # counted only when not plain
        self._credit: Counter[str] = Counter()
        self._exhausted: set[str] = set()  # queues that returned less than requested
        self._tight_turn = False
        self.held_back = False  # a queue was left out, or requested for fewer slots, because it had no room

    def include_all_queues(self) -> None:
        """Include queues again that returned no tasks before, because there may be work."""
        self._exhausted.clear()

    @property
    def has_queue_with_room(self) -> bool:
        return self.plain or any(self._has_room(share) for share in self.shares)

    def _has_room(self, share: QueueShare) -> bool:
        return share.max_running is None or self.running_by_queue[share.queue] < share.max_running

    def select_queues(self, free: int) -> tuple[list[str], int]:
        """Return the queues and the number of slots for the next claim.

        Without a queue that has room, return no queues and no slots.
        """
        if self.plain or not free:
            return self.queues, free
        room = {share.queue: self._compute_room(share, free) for share in self.shares}
        self.held_back = any(left < free for left in room.values())
        open_shares = [share for share in self.shares if room[share.queue] > 0]
        if not open_shares:
            return [], 0
        fresh = [share for share in open_shares if share.queue not in self._exhausted] or open_shares
        if len({share.weight for share in fresh}) > 1:
            selected = self._take_weighted_turn(fresh)
        else:
            selected = self._select_by_room(fresh, room, free)
        return [share.queue for share in selected], min(room[share.queue] for share in selected)

    def _compute_room(self, share: QueueShare, free: int) -> int:
        if share.max_running is None:
            return free
        return min(free, share.max_running - self.running_by_queue[share.queue])

    def handle_claim_response(self, queues: Sequence[str], *, full: bool) -> bool:
        """Record the result of a claim. Return True if no queue with room has more tasks."""
        if self.plain:
            return not full
        if full:
            self._exhausted.difference_update(queues)
            return False
        self._exhausted.update(queues)
        return all(share.queue in self._exhausted for share in self.shares if self._has_room(share))

    def _take_weighted_turn(self, fresh: list[QueueShare]) -> list[QueueShare]:
        """Select a queue by smooth weighted round robin.

        Each queue earns its weight, and the selected queue pays the total.
        """
        for share in fresh:
            self._credit[share.queue] += share.weight
        selected = max(fresh, key=lambda share: self._credit[share.queue])
        self._credit[selected.queue] -= sum(share.weight for share in fresh)
        return [selected]

    def _select_by_room(self, fresh: list[QueueShare], room: dict[str, int], free: int) -> list[QueueShare]:
        tight = [share for share in fresh if room[share.queue] * 2 < free]
        roomy = [share for share in fresh if room[share.queue] * 2 >= free]
        if not tight or not roomy:
            return tight or roomy
        self._tight_turn = not self._tight_turn
        return tight if self._tight_turn else roomy
