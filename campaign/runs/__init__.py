"""The fault runs. A run submits jobs, injects faults and waits until all jobs end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from campaign.checker import Rule
from campaign.environment import FaultEnvironment


@dataclass(frozen=True)
class FaultDose:
    """The size of a run: number of tasks and number of faults."""

    tasks: int
    faults: int


@dataclass(frozen=True)
class FaultRun:
    """A fault run: its function, its sizes and the extra rules that the checker applies.

    `short` is for CI, `full` proves the promises, `tiny` (default: `short`) is for tests and mutants.
    """

    name: str
    description: str
    execute: Callable[[FaultEnvironment, FaultDose], Awaitable[dict[str, object]]]
    short: FaultDose
    full: FaultDose
    rules: tuple[Rule, ...] = ()
    options: tuple[tuple[str, str], ...] = ()  # of the PostgreSQL server
    tiny: FaultDose | None = None
    small_disk: bool = False  # the server gets its own small disk

    def get_dose(self, size: str) -> FaultDose:
        return self.full if size == "full" else self.short if size == "short" else self.tiny or self.short
