"""The runs, by name. Each takes an arena and a dose, does harm, waits until all is over, and is judged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from campaign.arena import Arena
from campaign.checker import Rule


@dataclass(frozen=True)
class Dose:
    """How much of everything: tasks to do, faults to inject."""

    tasks: int
    faults: int


@dataclass(frozen=True)
class Run:
    """`short` fits in CI together with the others, `full` is what the promises are measured with, and `tiny`,
    where it is not the same as `short`, is for tests and for hunting mutants.
    """

    name: str
    story: str
    play: Callable[[Arena, Dose], Awaitable[dict[str, object]]]
    short: Dose
    full: Dose
    rules: tuple[Rule, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    tiny: Dose | None = None
    small_disk: bool = False  # the server gets one of its own

    def dose(self, size: str) -> Dose:
        return self.full if size == "full" else self.short if size == "short" else self.tiny or self.short
