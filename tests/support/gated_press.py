"""A press that prints when it is let, and says how many documents are on it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.systems.printing import Layout, Meta, Press, Printed, Standard


class GatedPress(Press):
    def __init__(self) -> None:
        super().__init__(threads=2)
        self.gate = asyncio.Event()
        self.problem: Exception | None = None
        self.printing = 0
        self.most = 0

    async def pdf(
        self,
        template: Path,
        content: Mapping[str, Any],
        meta: Meta,
        layout: Layout | None = None,
        *,
        standard: Standard | None = None,
    ) -> Printed:
        self.printing += 1
        self.most = max(self.most, self.printing)
        try:
            await self.gate.wait()
            if self.problem is not None:
                raise self.problem
            return await super().pdf(template, content, meta, layout, standard=standard)
        finally:
            self.printing -= 1
