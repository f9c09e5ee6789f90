"""Tasks of a report: text, PDF and audio of each of sixteen chapters, then a book of all chapters.

Each type of task can run on its own workers, because tasks keep no state. A text is the output of its task.
Files go to the object store and become visible when their task has succeeded.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import msgspec

from holdfast import Ctx, Graph, Reject, RetryPolicy, job, schedule, task
from holdfast.errors import InvalidError
from holdfast.systems.printing import PageLayout, PageMargins, PdfMetadata, RenderedPdf
from holdfast.systems.providers import (
    GeneratedText,
    SpeechAudio,
    StreamingTextProvider,
    UsageAccount,
    translate_provider_errors,
)
from holdfast.systems.providers.mp3_tags import Mp3Chapter, Mp3Tags, add_mp3_tags
from holdfast.systems.providers.openai_text import remove_unprintable_characters
from holdfast.systems.reports.budgets import describe_exhausted_budget
from holdfast.systems.reports.chapters import (
    CALCULATING_WEIGHT,
    CHAPTER_AUDIO_WEIGHT,
    CHAPTER_PDF_WEIGHT,
    CHAPTER_TEXT_WEIGHT,
    CHAPTERS,
    CHAPTERS_BY_SLUG,
    FINALIZING_WEIGHT,
    Chapter,
)
from holdfast.systems.reports.report_params import (
    CalendarFacts,
    Person,
    ReportParams,
    calculate_calendar_facts,
    encode_chapter_subject,
)
from holdfast.systems.reports.stored_reports import delete_old_reports
from holdfast.systems.reports.templates import BOOK_TEMPLATE, CHAPTER_TEMPLATE, COVER_TEMPLATE
from holdfast.systems.worker_state import SystemsWorkerState

REPORT_QUEUE: Final = "reports"
REPORT_TYPE: Final = "nuclear_v2"
TEXT_LIMIT_KEY, SPEECH_LIMIT_KEY = "text provider", "speech provider"
# External workers send a heartbeat once a minute.
REPORT_TASK_LEASE = timedelta(seconds=150)
REPORT_TASK_RETRY_POLICY = RetryPolicy(retries=2, base=timedelta(seconds=5), cap=timedelta(minutes=5))
REPORT_LAYOUT = PageLayout(page_size="A4", margins=PageMargins(top=1.1, bottom=1.0, left=1.15, right=1.15))
# A chapter has about 3,000 characters. The progress of a text that is longer stops before its end.
CHARS_PER_WRITING_PERCENT, MAX_WRITING_PERCENT = 32, 95
SHOWN_TEXT_CHARS = 160
CHAPTER_WRITING_INSTRUCTIONS = (
    "You write one chapter of a long report about two people. Write about 500 words of plain prose in "
    "paragraphs, without headings, lists or markup, in the language whose code is given. Be kind and "
    "concrete, claim nothing as certain, and use only what you are told."
)


class ChapterText(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a report chapter. In JSON, `author` is named `by`."""

    slug: str
    text: str
    author: str = msgspec.field(name="by")
    language: str


class GeneratedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A saved PDF or audio file. A PDF has `pages`; an audio file has a `duration` in seconds."""

    name: str
    size: int
    pages: int | None = None
    duration: float | None = None


@task(queue=REPORT_QUEUE, retry=REPORT_TASK_RETRY_POLICY, lease=REPORT_TASK_LEASE, priority=30)
async def calculating(ctx: Ctx[SystemsWorkerState], params: ReportParams) -> CalendarFacts:
    """Calculate the calendar facts that the chapter texts use."""
    await ctx.report(50, phase="calculating", message="Calculating")
    return calculate_calendar_facts(params)


@task(
    queue=REPORT_QUEUE,
    retry=REPORT_TASK_RETRY_POLICY,
    lease=REPORT_TASK_LEASE,
    priority=20,
    timeout=timedelta(minutes=5),
)
async def text_generation(
    ctx: Ctx[SystemsWorkerState], slug: str, params: ReportParams, facts: CalendarFacts
) -> ChapterText:
    """Generate the text of a report chapter."""
    chapter = _get_chapter(slug)
    ctx.progress(1, phase="text", message=f"Generating chapter: {chapter.title}...")
    await _enforce_budget(ctx)
    with translate_provider_errors(TEXT_LIMIT_KEY):
        generated = await _write_chapter(ctx, chapter, encode_chapter_subject(params, chapter, facts))
    text = ChapterText(
        slug=slug,
        text=remove_unprintable_characters(generated.text),
        author=generated.author,
        language=params.language,
    )
    await _save_chapter_metadata(ctx, chapter, text)
    return text


async def _write_chapter(ctx: Ctx[SystemsWorkerState], chapter: Chapter, subject: str) -> GeneratedText:
    """Write a chapter. The progress shows the end of its text while a language model writes it."""
    provider, account = ctx.state.providers.text, UsageAccount.of_task(ctx)
    if not isinstance(provider, StreamingTextProvider):
        return await provider.generate_text(CHAPTER_WRITING_INSTRUCTIONS, subject, account=account)
    text = ""

    def show_text(part: str) -> None:
        nonlocal text
        text += part
        percent = min(MAX_WRITING_PERCENT, 1 + len(text) // CHARS_PER_WRITING_PERCENT)
        end = " ".join(text.split())[-SHOWN_TEXT_CHARS:]
        ctx.progress(percent, phase="text", message=f"{chapter.title}: …{end}")

    return await provider.stream_text(
        CHAPTER_WRITING_INSTRUCTIONS, subject, account=account, on_text=show_text
    )


async def _save_chapter_metadata(ctx: Ctx[SystemsWorkerState], chapter: Chapter, text: ChapterText) -> None:
    metadata = {
        "chapter": chapter,
        "words": len(text.text.split()),
        "by": text.author,
        "language": text.language,
    }
    name = f"chapter{chapter.number}_metadata.json"
    await ctx.save(
        name, msgspec.json.encode(metadata), "application/json", kind="json", ttl=_get_retention(ctx)
    )


@task(
    queue=REPORT_QUEUE,
    retry=REPORT_TASK_RETRY_POLICY,
    lease=REPORT_TASK_LEASE,
    priority=10,
    timeout=timedelta(minutes=5),
)
async def pdf_generation(
    ctx: Ctx[SystemsWorkerState], slug: str, params: ReportParams, text: ChapterText
) -> GeneratedFile:
    """Render a report chapter as PDF."""
    chapter = _get_chapter(slug)
    ctx.progress(1, phase="pdf", message=f"Typesetting chapter: {chapter.title}...")
    rendered = await _render_chapters(ctx, params, [(chapter, text)], book=False)
    name, meta = f"chapter{chapter.number}.pdf", {"pages": rendered.page_count}
    file = await ctx.save(
        name, rendered.pdf, "application/pdf", kind="pdf", meta=meta, ttl=_get_retention(ctx)
    )
    return GeneratedFile(name=name, size=file.size, pages=rendered.page_count)


@task(
    queue=REPORT_QUEUE, retry=REPORT_TASK_RETRY_POLICY, lease=REPORT_TASK_LEASE, timeout=timedelta(minutes=10)
)
async def audio_generation(
    ctx: Ctx[SystemsWorkerState], slug: str, text: ChapterText, params: ReportParams | None = None
) -> GeneratedFile:
    """Convert a report chapter to speech as MP3."""
    chapter = _get_chapter(slug)
    ctx.progress(1, phase="audio", message=f"Recording chapter: {chapter.title}...")
    spoken = f"Chapter {chapter.number}. {chapter.title}.\n\n{text.text}"
    await _enforce_budget(ctx)
    with translate_provider_errors(SPEECH_LIMIT_KEY):
        audio = await ctx.state.providers.speech.synthesize_speech(
            spoken, text.language, account=UsageAccount.of_task(ctx)
        )
    meta = {"duration": audio.duration_s, "bit_rate": audio.bit_rate, "by": audio.voice}
    name = f"chapter{chapter.number}.mp3"
    mp3 = audio.mp3 if params is None else await _tag_recording(ctx, params, chapter, text, audio)
    file = await ctx.save(name, mp3, "audio/mpeg", kind="audio", meta=meta, ttl=_get_retention(ctx))
    return GeneratedFile(name=name, size=file.size, duration=audio.duration_s)


@task(
    queue=REPORT_QUEUE,
    retry=REPORT_TASK_RETRY_POLICY,
    lease=REPORT_TASK_LEASE,
    priority=40,
    timeout=timedelta(minutes=10),
)
async def finalizing(
    ctx: Ctx[SystemsWorkerState],
    params: ReportParams,
    texts: list[ChapterText],
    pdfs: list[GeneratedFile],
    recordings: list[GeneratedFile],
) -> dict[str, Any]:
    """Save all chapters of a report as one PDF book, and a list of all files as JSON."""
    ctx.progress(10, phase="finalizing", message="Rendering the book...")
    chapters = [(_get_chapter(text.slug), text) for text in texts]
    book = await _render_chapters(ctx, params, chapters, book=True)
    meta = {"pages": book.page_count}
    await ctx.save(
        "full_nuclear.pdf", book.pdf, "application/pdf", kind="pdf", meta=meta, ttl=_get_retention(ctx)
    )
    ctx.progress(80, phase="finalizing", message="Writing the list of files...")
    documents = [
        {"chapter": chapter, "by": text.author, "pdf": pdf, "audio": recording}
        for (chapter, text), pdf, recording in zip(chapters, pdfs, recordings, strict=True)
    ]
    duration = round(sum(recording.duration or 0 for recording in recordings), 1)
    totals = {"pages": book.page_count, "duration": duration}
    manifest = {"type": REPORT_TYPE, "params": params, **totals, "documents": documents}
    await ctx.save(
        "full_nuclear.json",
        msgspec.json.encode(manifest),
        "application/json",
        kind="json",
        ttl=_get_retention(ctx),
    )
    return {"documents": len(documents), **totals}


@schedule("30 2 * * *", name="report cleanup")
@task(queue=REPORT_QUEUE, retries=2)
async def report_cleanup(ctx: Ctx[SystemsWorkerState]) -> int:
    """Delete reports that ended before the setting `report_retention` and whose files have expired."""
    state = ctx.state
    return await delete_old_reports(state.client, state.schema, state.client.settings.report_retention)


async def _enforce_budget(ctx: Ctx[SystemsWorkerState]) -> None:
    """Stop the task with a reason if the owner's budget is used up. What is done stays."""
    reason = await describe_exhausted_budget(ctx.state.client, ctx.owner)
    if reason is not None:
        raise Reject(reason)


def _get_retention(ctx: Ctx[SystemsWorkerState]) -> timedelta:
    return ctx.state.client.settings.report_retention


def _get_chapter(slug: str) -> Chapter:
    if slug not in CHAPTERS_BY_SLUG:
        raise Reject(f"The chapter {slug!r} does not exist.")
    return CHAPTERS_BY_SLUG[slug]


async def _render_chapters(
    ctx: Ctx[SystemsWorkerState],
    params: ReportParams,
    chapters: list[tuple[Chapter, ChapterText]],
    *,
    book: bool,
) -> RenderedPdf:
    title = "The whole story" if book else chapters[0][0].title
    content = _build_report_content(params, chapters)
    names = " and ".join(person["name"] for person in content["people"])
    author = remove_unprintable_characters(chapters[0][1].author)
    metadata = PdfMetadata(title=f"{title}: {names}", author=author, language=params.language)
    template = BOOK_TEMPLATE if book else CHAPTER_TEMPLATE
    try:
        return await ctx.state.renderer.render_pdf(
            template, content, metadata, REPORT_LAYOUT, standard="a-2b"
        )
    except InvalidError as error:
        raise Reject(str(error)) from error


def _build_report_content(
    params: ReportParams, chapters: list[tuple[Chapter, ChapterText]]
) -> dict[str, Any]:
    return {
        "people": [_build_person_content(params.person1), _build_person_content(params.person2)],
        "systems": [remove_unprintable_characters(name.replace("_", " ")) for name in params.systems],
        "chapters": [_build_chapter_content(chapter, text) for chapter, text in chapters],
    }


async def _tag_recording(
    ctx: Ctx[SystemsWorkerState],
    params: ReportParams,
    chapter: Chapter,
    text: ChapterText,
    audio: SpeechAudio,
) -> bytes:
    """Add title, album, artist, track, chapter and cover, which players show."""
    content = _build_report_content(params, [(chapter, text)])
    names = " and ".join(person["name"] for person in content["people"])
    metadata = PdfMetadata(title=chapter.title, author=text.author, language=params.language)
    covers = await ctx.state.renderer.render_previews(COVER_TEMPLATE, content, metadata)
    tags = Mp3Tags(
        title=chapter.title,
        album=f"The whole story: {names}",
        artist=f"{text.author}, read by {audio.voice}",
        track=chapter.number,
        track_count=len(CHAPTERS),
        cover=covers[0],
        chapters=[Mp3Chapter(title=chapter.title, start_s=0, end_s=audio.duration_s)],
    )
    return add_mp3_tags(audio.mp3, tags)


def _build_chapter_content(chapter: Chapter, text: ChapterText) -> dict[str, Any]:
    paragraphs = [paragraph.strip() for paragraph in text.text.split("\n\n")]
    return {
        "number": chapter.number,
        "title": chapter.title,
        "question": chapter.question,
        "by": remove_unprintable_characters(text.author),
        "paragraphs": [paragraph for paragraph in paragraphs if paragraph],
    }


def _build_person_content(person: Person) -> dict[str, str]:
    details = ", ".join(detail for detail in (person.birth_date, person.birth_place) if detail)
    return {
        "name": remove_unprintable_characters(person.name) or "?",
        "about": remove_unprintable_characters(details),
    }


@job(REPORT_TYPE, params=ReportParams, public=True)
def nuclear_v2(params: ReportParams) -> Graph:
    """Build the task graph of a report: sixteen chapters about two people, and a book of all chapters."""
    graph = Graph(REPORT_TYPE)
    facts = graph.add(calculating(params), weight=CALCULATING_WEIGHT)
    texts: list[Any] = []
    pdfs: list[Any] = []
    recordings: list[Any] = []
    for chapter in CHAPTERS:
        slug = chapter.slug
        text = graph.add(
            text_generation(slug, params, facts.result),
            name=f"text {slug}",
            weight=CHAPTER_TEXT_WEIGHT,
            limit_key=TEXT_LIMIT_KEY,
        )
        pdf = graph.add(
            pdf_generation(slug, params, text.result), name=f"pdf {slug}", weight=CHAPTER_PDF_WEIGHT
        )
        recording = graph.add(
            audio_generation(slug, text.result, params),
            name=f"audio {slug}",
            weight=CHAPTER_AUDIO_WEIGHT,
            limit_key=SPEECH_LIMIT_KEY,
        )
        texts.append(text.result)
        pdfs.append(pdf.result)
        recordings.append(recording.result)
    graph.add(finalizing(params, texts, pdfs, recordings), weight=FINALIZING_WEIGHT)
    return graph
