"""A clock that tests can move."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from holdfast.engine import scratch
from holdfast.engine.connection import connected
from holdfast.settings import Secret, Settings


@dataclass(frozen=True)
class Clock:
    """Moves `holdfast.now()` of one test database; the clock of the machine stays as it is."""

    url: Secret
    settings: Settings

    async def advance(self, by: timedelta) -> None:
        async with connected(self.url, self.settings) as connection:
            await scratch.move_clock(connection, by)
