"""Text providers for tests of reports: one that is fast, and one that never returns."""

from __future__ import annotations

import asyncio

import msgspec

from holdfast.systems.providers import GeneratedText, UsageAccount
from holdfast.systems.providers.local_text import LocalTextProvider


class OneSentenceTextProvider(LocalTextProvider):
    """Writes one sentence with markup, which keeps tests of whole reports fast."""

    async def generate_text(self, instructions: str, subject: str, *, account: UsageAccount) -> GeneratedText:
        title = msgspec.json.decode(subject)["chapter"]["title"]
        return GeneratedText(f"This is about {title}. #image(x) <b>bold</b> *stars*", "a stub text provider")


class HangingTextProvider(LocalTextProvider):
    """Never returns. `call_count` is the number of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.call_count = 0

    async def generate_text(self, instructions: str, subject: str, *, account: UsageAccount) -> GeneratedText:
        self.call_count += 1
        await asyncio.Event().wait()
        raise AssertionError
