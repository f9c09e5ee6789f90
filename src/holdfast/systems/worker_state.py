"""State that the tasks of the systems share in one worker: client, PDF renderer and providers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

from holdfast import Client, Settings, lifespan
from holdfast.systems.capture import BrowserPool
from holdfast.systems.printing import FontCatalog, PdfRenderer
from holdfast.systems.providers import (
    Provider,
    ProviderKind,
    ProviderRegistry,
    SpeechProvider,
    TextProvider,
)

BROWSER_IDLE_TIMEOUT = timedelta(minutes=10)


class SystemsWorkerState:
    """What the tasks of the systems (the bundled applications) share in a worker (`ctx.state`).

    Each resource opens at first use.
    """

    def __init__(
        self,
        client: Client,
        *,
        renderer: PdfRenderer | None = None,
        text_provider: TextProvider | None = None,
        speech_provider: SpeechProvider | None = None,
    ) -> None:
        self.client = client
        settings = client.settings
        self.browsers = BrowserPool.from_settings(settings, idle_timeout=BROWSER_IDLE_TIMEOUT)
        self.renderer = renderer or create_pdf_renderer(settings, self.browsers)
        own_providers: dict[ProviderKind, Provider | None] = {
            "text": text_provider,
            "speech": speech_provider,
        }
        self.providers = ProviderRegistry.for_client(
            client, {kind: provider for kind, provider in own_providers.items() if provider is not None}
        )
        self.schema = settings.systems_schema

    async def close(self) -> None:
        """Close the PDF renderer, the browser and the providers."""
        self.renderer.close()
        await self.browsers.close()
        await self.providers.close()


def create_pdf_renderer(settings: Settings, browsers: BrowserPool | None = None) -> PdfRenderer:
    """Create a PDF renderer that also uses the fonts in the setting `font_folders`.

    Without `browsers`, it cannot render HTML templates.
    """
    folders = [Path(folder.strip()) for folder in settings.font_folders.split(",") if folder.strip()]
    return PdfRenderer(fonts=FontCatalog(folders) if folders else None, browsers=browsers)


@lifespan
async def systems_lifespan() -> AsyncIterator[SystemsWorkerState]:
    """Open the shared state of the systems in a worker, and close it when the worker stops."""
    async with Client() as client:
        state = SystemsWorkerState(client)
        try:
            yield state
        finally:
            await state.close()
