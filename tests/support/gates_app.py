"""The systems in a worker process that stops where it is told, so that a test can kill it there.

HOLDFAST_GATES is a folder. A place is shut while the folder has a file `stop <place>`; who comes there waits
for ever and says so with a file of the place's name. A document is stopped at `stored` if its title is
`gate:stored`; the tasks of a report by their names.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from writers import BriefWriter

from holdfast.systems.exports import export_cleanup, export_pdf, records, work
from holdfast.systems.reports import (
    audio_generation,
    calculating,
    finalizing,
    pdf_generation,
    text_generation,
)
from holdfast.systems.reports import work as binding
from holdfast.systems.workshop import Workshop, workshop

__all__ = [
    "audio_generation",
    "calculating",
    "export_cleanup",
    "export_pdf",
    "finalizing",
    "lifespan",
    "pdf_generation",
    "text_generation",
]

FOLDER = Path(os.environ["HOLDFAST_GATES"])
lifespan = workshop


async def gate(name: str) -> None:
    if not (FOLDER / f"stop {name}").exists():
        return
    (FOLDER / name).touch()
    await asyncio.Event().wait()


def of(document: records.Document, place: str) -> str:
    return place if document.title == f"gate:{place}" else "nowhere"


plain_fetched, plain_printed, plain_stored = work._fetched, work._printed, work._stored
plain_history = records.write_history
titles: dict[str, records.Document] = {}


async def fetched(ctx: Any, shop: Any, document_id: Any) -> records.Document:
    found = await plain_fetched(ctx, shop, document_id)
    titles[str(document_id)] = found
    await gate(of(found, "fetched"))
    return found


async def printed(shop: Any, document: records.Document, *rest: Any) -> Any:
    await gate(of(document, "rendered"))
    made = await plain_printed(shop, document, *rest)
    await gate(of(document, "printed"))
    return made


async def stored(ctx: Any, document_id: Any, made: Any) -> Any:
    file = await plain_stored(ctx, document_id, made)
    await gate(of(titles[str(document_id)], "stored"))
    return file


async def history(connection: Any, schema: str, job_id: Any, owner: str, made: records.Made) -> None:
    await plain_history(connection, schema, job_id, owner, made)
    await gate(of(made.document, "history"))


work._fetched, work._printed, work._stored = fetched, printed, stored  # type: ignore[assignment]
records.write_history = history

plain_metadata, plain_pages = binding._save_metadata, binding._printed


async def metadata(ctx: Any, chapter: Any, text: Any) -> None:
    await plain_metadata(ctx, chapter, text)
    await gate(f"text {chapter.slug}")


async def pages(ctx: Any, params: Any, parts: Any, *, book: bool) -> Any:
    made = await plain_pages(ctx, params, parts, book=book)
    await gate("finalizing" if book else f"pdf {parts[0][0].slug}")
    return made


binding._save_metadata, binding._printed = metadata, pages


class GatedVoice:
    key = "speech:local"

    def __init__(self, voice: Any) -> None:
        self._voice = voice

    async def speak(self, text: str, language: str) -> Any:
        sound = await self._voice.speak(text, language)
        await gate("audio " + text.split(".")[1].strip().lower())
        return sound


plain_init = Workshop.__init__


def init(self: Workshop, client: Any, **parts: Any) -> None:
    plain_init(self, client, **{"writer": BriefWriter(), **parts})
    self.voice = GatedVoice(self.voice)


Workshop.__init__ = init  # type: ignore[method-assign]
