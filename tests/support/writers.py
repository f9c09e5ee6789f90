"""Writers for tests of reports: a brief one, and one that never comes to an end."""

from __future__ import annotations

import asyncio

import msgspec

from holdfast.systems.providers import Written
from holdfast.systems.providers.local import LocalWriter


class BriefWriter(LocalWriter):
    """Writes one sentence, so that tests of the whole are quick; the voice and the press are real."""

    async def write(self, instructions: str, subject: str) -> Written:
        title = msgspec.json.decode(subject)["chapter"]["title"]
        return Written(f"This is about {title}. #image(x) <b>bold</b> *stars*", "a brief writer")


class StuckWriter(LocalWriter):
    def __init__(self) -> None:
        self.asked = 0

    async def write(self, instructions: str, subject: str) -> Written:
        self.asked += 1
        await asyncio.Event().wait()
        raise AssertionError
