"""State that the tasks of the systems share in one worker: client, PDF renderer and providers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from holdfast import Client, Settings, lifespan
from holdfast.systems.printing import FontCatalog, PdfRenderer
from holdfast.systems.providers import SpeechProvider, TextProvider
from holdfast.systems.providers.local_speech import LocalSpeechProvider
from holdfast.systems.providers.local_text import LocalTextProvider
from holdfast.systems.providers.openai_speech import OpenAISpeechProvider
from holdfast.systems.providers.openai_text import OpenAITextProvider


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
        self.renderer = renderer or create_pdf_renderer(settings)
        self.text_provider = text_provider or create_text_provider(settings)
        self.speech_provider = speech_provider or create_speech_provider(settings)
        self.schema = settings.systems_schema

    async def close(self) -> None:
        """Close the PDF renderer and the providers."""
        self.renderer.close()
        for provider in (self.text_provider, self.speech_provider):
            if isinstance(provider, OpenAITextProvider | OpenAISpeechProvider):
                await provider.close()


def create_pdf_renderer(settings: Settings) -> PdfRenderer:
    """Create a PDF renderer that also uses the fonts in the setting `font_folders`."""
    folders = [Path(folder.strip()) for folder in settings.font_folders.split(",") if folder.strip()]
    return PdfRenderer(fonts=FontCatalog(folders)) if folders else PdfRenderer()


def create_text_provider(settings: Settings) -> TextProvider:
    """Create a text provider for `text_url`, or the local text provider if `text_url` is not set."""
    if settings.text_url is None:
        return LocalTextProvider()
    return OpenAITextProvider(settings.text_url, model=settings.text_model, api_key=settings.text_key)


def create_speech_provider(settings: Settings) -> SpeechProvider:
    """Create a speech provider for `speech_url`, or the local one if `speech_url` is not set."""
    if settings.speech_url is None:
        return LocalSpeechProvider()
    return OpenAISpeechProvider(
        settings.speech_url,
        model=settings.speech_model,
        voice=settings.speech_voice,
        api_key=settings.speech_key,
    )


@lifespan
async def systems_lifespan() -> AsyncIterator[SystemsWorkerState]:
    """Open the shared state of the systems in a worker, and close it when the worker stops."""
    async with Client() as client:
        state = SystemsWorkerState(client)
        try:
            yield state
        finally:
            await state.close()
