"""A PDF renderer that waits for a test before it renders, and counts the renderings that run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.systems.printing import PageLayout, PdfMetadata, PdfRenderer, PdfStandard, RenderedPdf


class GatedRenderer(PdfRenderer):
    """Renders after `gate` is set, or raises `error`. `max_running` is the highest value of `running`."""

    def __init__(self) -> None:
        super().__init__(threads=2)
        self.gate = asyncio.Event()
        self.error: Exception | None = None
        self.running = 0
        self.max_running = 0

    async def render_pdf(
        self,
        template: Path,
        content: Mapping[str, Any],
        metadata: PdfMetadata,
        layout: PageLayout | None = None,
        *,
        standard: PdfStandard | None = None,
    ) -> RenderedPdf:
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        try:
            await self.gate.wait()
            if self.error is not None:
                raise self.error
            return await super().render_pdf(template, content, metadata, layout, standard=standard)
        finally:
            self.running -= 1
