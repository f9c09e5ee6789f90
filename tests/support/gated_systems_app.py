"""The systems in a worker process that stops at chosen stages, so that a test can kill it there.

HOLDFAST_GATES is a folder. A stage is blocked while the folder contains the file `stop <stage>`. A task that
reaches a blocked stage creates a file with the name of the stage and waits forever. An export stops at the
stage `stored` if the title of its document is `gate:stored`; tasks of a report stop at the stage with their
name.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from stub_text_providers import OneSentenceTextProvider

from holdfast.systems.exports import export_cleanup, export_pdf, export_tasks, queries
from holdfast.systems.providers.local_speech import LocalSpeechProvider
from holdfast.systems.reports import (
    audio_generation,
    calculating,
    finalizing,
    pdf_generation,
    report_tasks,
    text_generation,
)
from holdfast.systems.worker_state import SystemsWorkerState, systems_lifespan

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

GATE_FOLDER = Path(os.environ["HOLDFAST_GATES"])
lifespan = systems_lifespan


async def pass_gate(stage: str) -> None:
    if not (GATE_FOLDER / f"stop {stage}").exists():
        return
    (GATE_FOLDER / stage).touch()
    await asyncio.Event().wait()


async def pass_document_gate(document: queries.StoredDocument, stage: str) -> None:
    if document.title == f"gate:{stage}":
        await pass_gate(stage)


original_fetch_document = export_tasks._fetch_document
original_render_document = export_tasks._render_document
original_save_file = export_tasks._save_pdf_file
original_add_history_entry = queries.add_history_entry
documents: dict[str, queries.StoredDocument] = {}


async def fetch_document(ctx: Any, document_id: Any) -> queries.StoredDocument:
    document = await original_fetch_document(ctx, document_id)
    documents[str(document_id)] = document
    await pass_document_gate(document, "fetched")
    return document


async def render_document(state: Any, document: queries.StoredDocument, *arguments: Any) -> Any:
    await pass_document_gate(document, "rendered")
    rendered = await original_render_document(state, document, *arguments)
    await pass_document_gate(document, "printed")
    return rendered


async def save_file(ctx: Any, document_id: Any, rendered: Any) -> Any:
    file = await original_save_file(ctx, document_id, rendered)
    await pass_document_gate(documents[str(document_id)], "stored")
    return file


async def add_history_entry(
    connection: Any, schema: str, job_id: Any, owner: str, exported: queries.ExportedFile
) -> None:
    await original_add_history_entry(connection, schema, job_id, owner, exported)
    await pass_document_gate(exported.document, "history")


export_tasks._fetch_document = fetch_document
export_tasks._render_document = render_document  # type: ignore[assignment]
export_tasks._save_pdf_file = save_file
queries.add_history_entry = add_history_entry

original_save_metadata = report_tasks._save_chapter_metadata
original_render_chapters = report_tasks._render_chapters


async def save_metadata(ctx: Any, chapter: Any, text: Any) -> None:
    await original_save_metadata(ctx, chapter, text)
    await pass_gate(f"text {chapter.slug}")


async def render_chapters(ctx: Any, params: Any, chapters: Any, *, book: bool) -> Any:
    rendered = await original_render_chapters(ctx, params, chapters, book=book)
    await pass_gate("finalizing" if book else f"pdf {chapters[0][0].slug}")
    return rendered


report_tasks._save_chapter_metadata, report_tasks._render_chapters = save_metadata, render_chapters


class GatedSpeechProvider:
    limit_key = "speech:local"

    def __init__(self, provider: Any) -> None:
        self._provider = provider

    async def close(self) -> None:
        await self._provider.close()

    async def synthesize_speech(self, text: str, language: str, *, account: Any) -> Any:
        audio = await self._provider.synthesize_speech(text, language, account=account)
        await pass_gate("audio " + text.split(".")[1].strip().lower())
        return audio


original_init = SystemsWorkerState.__init__


def init_with_gates(self: SystemsWorkerState, client: Any, **parts: Any) -> None:
    providers = {
        "text_provider": OneSentenceTextProvider(),
        "speech_provider": GatedSpeechProvider(LocalSpeechProvider()),
    }
    original_init(self, client, **{**providers, **parts})


SystemsWorkerState.__init__ = init_with_gates  # type: ignore[method-assign]
