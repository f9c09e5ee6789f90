"""Which queues to ask next, and for how many: limits of this worker per queue, and weights between queues.

A queue that had less than it was asked for is left out until there is news. Queues whose own room is much
smaller than the worker's are asked by themselves, so that they do not make every question small.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.errors import InvalidError

_SHARE = re.compile(r"(?P<queue>[^:*].*?)(?::(?P<most>\d+))?(?:\*(?P<weight>\d+))?")


@dataclass(frozen=True)
class Share:
    """A queue as one worker serves it: at most `most` of its tasks at once, `weight` times as often."""

    queue: str
    most: int | None = None
    weight: int = 1

    def __post_init__(self) -> None:
        if not self.queue or (self.most is not None and self.most < 1) or self.weight < 1:
            raise InvalidError(
                f"{self.queue!r} cannot be served like that: both numbers must be at least 1.", field="queues"
            )


def parse_shares(text: str) -> list[Share]:
    """`browser:4,default:8*3,mail`: at most 4 and 8 at once, and default three times as often."""
    shares: list[Share] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        match = _SHARE.fullmatch(part)
        if match is None:
            raise InvalidError(
                f"{part!r} is no queue.", fix="Write name, name:4 or name:4*3.", field="queues"
            )
        most, weight = match["most"], match["weight"]
        shares.append(Share(match["queue"].strip(), int(most) if most else None, int(weight or 1)))
    if len({share.queue for share in shares}) < len(shares):
        raise InvalidError("A queue is named twice.", field="queues")
    return shares


class Shares:
    def __init__(self, shares: Iterable[Share | str]) -> None:
        self.shares = [Share(each) if isinstance(each, str) else each for each in shares]
        self.queues = [share.queue for share in self.shares]
        self.plain = all(share.most is None and share.weight == 1 for share in self.shares)
        self.running: Counter[str] = Counter()  # kept only when not plain
        self._credit: Counter[str] = Counter()
        self._short: set[str] = set()
        self._tight_turn = False
        self.held_back = False  # a queue was not asked, or for less, because it has no room

    def refresh(self) -> None:
        """There may be work again."""
        self._short.clear()

    @property
    def has_room(self) -> bool:
        return self.plain or any(s.most is None or self.running[s.queue] < s.most for s in self.shares)

    def ask(self, free: int) -> tuple[list[str], int]:
        """Queues and slots of the next question; nothing when no queue has room."""
        if self.plain or not free:
            return self.queues, free
        room = {s.queue: min(free, s.most - self.running[s.queue] if s.most else free) for s in self.shares}
        self.held_back = any(left < free for left in room.values())
        open_ = [s for s in self.shares if room[s.queue] > 0]
        if not open_:
            return [], 0
        fresh = [s for s in open_ if s.queue not in self._short] or open_
        chosen = (
            self._weighed(fresh) if len({s.weight for s in fresh}) > 1 else self._grouped(fresh, room, free)
        )
        return [s.queue for s in chosen], min(room[s.queue] for s in chosen)

    def answered(self, queues: Sequence[str], *, full: bool) -> bool:
        """Whether every queue with room has been asked and had less."""
        if self.plain:
            return not full
        if full:
            self._short.difference_update(queues)
            return False
        self._short.update(queues)
        rest = (s for s in self.shares if s.most is None or self.running[s.queue] < s.most)
        return all(s.queue in self._short for s in rest)

    def _weighed(self, fresh: list[Share]) -> list[Share]:
        """The one whose turn it is: everybody earns its weight, the richest pays for all."""
        for share in fresh:
            self._credit[share.queue] += share.weight
        chosen = max(fresh, key=lambda share: self._credit[share.queue])
        self._credit[chosen.queue] -= sum(share.weight for share in fresh)
        return [chosen]

    def _grouped(self, fresh: list[Share], room: dict[str, int], free: int) -> list[Share]:
        tight = [s for s in fresh if room[s.queue] * 2 < free]
        roomy = [s for s in fresh if room[s.queue] * 2 >= free]
        if not tight or not roomy:
            return tight or roomy
        self._tight_turn = not self._tight_turn
        return tight if self._tight_turn else roomy
