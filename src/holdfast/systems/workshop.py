"""What the tasks of the systems share in one worker: the database, the press, who writes and who speaks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from holdfast import Client, Settings, lifespan
from holdfast.systems.printing import FontBook, Press
from holdfast.systems.providers import TextProvider, Voice
from holdfast.systems.providers.espeak import LocalVoice
from holdfast.systems.providers.local import LocalWriter
from holdfast.systems.providers.speech import SpeechVoice
from holdfast.systems.providers.text import ChatText


class Workshop:
    """Opens nothing before it is needed."""

    def __init__(
        self,
        client: Client,
        *,
        press: Press | None = None,
        writer: TextProvider | None = None,
        voice: Voice | None = None,
    ) -> None:
        self.client = client
        settings = client.settings
        self.press = press or make_press(settings)
        self.writer = writer or make_writer(settings)
        self.voice = voice or make_voice(settings)
        self.schema = settings.systems_schema

    async def close(self) -> None:
        self.press.close()
        for each in (self.writer, self.voice):
            if isinstance(each, ChatText | SpeechVoice):
                await each.close()


def make_press(settings: Settings) -> Press:
    folders = [Path(each.strip()) for each in settings.font_folders.split(",") if each.strip()]
    return Press(fonts=FontBook(folders)) if folders else Press()


def make_writer(settings: Settings) -> TextProvider:
    if settings.text_url is None:
        return LocalWriter()
    return ChatText(settings.text_url, model=settings.text_model, key=settings.text_key)


def make_voice(settings: Settings) -> Voice:
    if settings.speech_url is None:
        return LocalVoice()
    return SpeechVoice(
        settings.speech_url,
        model=settings.speech_model,
        voice=settings.speech_voice,
        key=settings.speech_key,
    )


@lifespan
async def workshop() -> AsyncIterator[Workshop]:
    """The state of a worker that runs a system: `ctx.state`."""
    async with Client() as client:
        made = Workshop(client)
        try:
            yield made
        finally:
            await made.close()
