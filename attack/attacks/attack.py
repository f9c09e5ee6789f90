"""What an attack is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from attack.findings import AttackLog
from attack.target import Product


@dataclass(frozen=True)
class Attack:
    """An attack on the running product. `run` records its checks and findings in the log."""

    name: str
    description: str
    run: Callable[[Product, AttackLog], Awaitable[None]]
    in_short_dose: bool = True
