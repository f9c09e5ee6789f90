"""A clock that tests can move."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from holdfast.definitions.validation import parse_duration
from holdfast.engine import scratch
from holdfast.engine.connection import open_connection
from holdfast.settings import Secret, Settings


@dataclass(frozen=True)
class Clock:
    """The clock `holdfast.now()` of one test database. The clock of the machine does not change."""

    url: Secret
    settings: Settings

    async def advance(self, by: timedelta | float) -> None:
        """Move the clock forward. Tasks, retries and schedules that fall due become ready."""
        async with open_connection(self.url, self.settings) as connection:
            await scratch.advance_database_clock(connection, parse_duration(by, "by"))
