"""The work: sixteen documents, each a text, then from it a PDF and a recording; and the whole as one book.

Every task can run in a worker of its own, by type; none keeps anything. A text travels as its task's output,
files go to the store and are seen when their task has succeeded.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import msgspec

from holdfast import Ctx, Graph, RateLimited, Reject, RetryPolicy, job, task
from holdfast.errors import InvalidError
from holdfast.systems.printing import Layout, Margins, Meta, Printed
from holdfast.systems.providers.text import clean
from holdfast.systems.reports import chapters as contents
from holdfast.systems.reports.chapters import BY_SLUG, CHAPTERS, Chapter
from holdfast.systems.reports.people import Facts, Person, ReportParams, calculate, subject_of
from holdfast.systems.reports.templates import BOOK, CHAPTER
from holdfast.systems.workshop import Workshop

QUEUE: Final = "reports"
TYPE: Final = "nuclear_v2"
TEXT_KEY, SPEECH_KEY = "text provider", "speech provider"
# Outside workers say that they are alive once a minute.
LEASE = timedelta(seconds=150)
RETRY = RetryPolicy(retries=2, base=timedelta(seconds=5), cap=timedelta(minutes=5))
LAYOUT = Layout(page_size="A4", margins=Margins(top=1.1, bottom=1.0, left=1.15, right=1.15))
INSTRUCTIONS = (
    "You write one chapter of a long report about two people. Write about 500 words of plain prose in "
    "paragraphs, without headings, lists or markup, in the language whose code is given. Be kind and "
    "concrete, claim nothing as certain, and use only what you are told."
)


class Text(msgspec.Struct, frozen=True, kw_only=True):
    slug: str
    text: str
    by: str
    language: str


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a task made."""

    name: str
    size: int
    pages: int | None = None
    duration: float | None = None


@task(queue=QUEUE, retry=RETRY, lease=LEASE, priority=30)
async def calculating(ctx: Ctx[Workshop], params: ReportParams) -> Facts:
    """What is known before a word is written. Half of it is 5 percent of the job."""
    await ctx.report(50, phase="calculating", message="Calculating")
    return calculate(params)


@task(queue=QUEUE, retry=RETRY, lease=LEASE, priority=20, timeout=timedelta(minutes=5))
async def text_generation(ctx: Ctx[Workshop], slug: str, params: ReportParams, facts: Facts) -> Text:
    chapter = _chapter(slug)
    ctx.progress(1, phase="text", message=f"Generating chapter: {chapter.title}...")
    with _resting(TEXT_KEY):
        written = await ctx.state.writer.write(INSTRUCTIONS, subject_of(params, chapter, facts))
    text = Text(slug=slug, text=clean(written.text), by=written.by, language=params.language)
    await _save_metadata(ctx, chapter, text)
    return text


async def _save_metadata(ctx: Ctx[Workshop], chapter: Chapter, text: Text) -> None:
    told = {"chapter": chapter, "words": len(text.text.split()), "by": text.by, "language": text.language}
    await ctx.save(
        f"chapter{chapter.number}_metadata.json", msgspec.json.encode(told), "application/json", kind="json"
    )


@task(queue=QUEUE, retry=RETRY, lease=LEASE, priority=10, timeout=timedelta(minutes=5))
async def pdf_generation(ctx: Ctx[Workshop], slug: str, params: ReportParams, text: Text) -> Made:
    chapter = _chapter(slug)
    ctx.progress(1, phase="pdf", message=f"Typesetting chapter: {chapter.title}...")
    printed = await _printed(ctx, params, [(chapter, text)], book=False)
    name = f"chapter{chapter.number}.pdf"
    file = await ctx.save(name, printed.pdf, "application/pdf", kind="pdf", meta={"pages": printed.pages})
    return Made(name=name, size=file.size, pages=printed.pages)


@task(queue=QUEUE, retry=RETRY, lease=LEASE, timeout=timedelta(minutes=10))
async def audio_generation(ctx: Ctx[Workshop], slug: str, text: Text) -> Made:
    chapter = _chapter(slug)
    ctx.progress(1, phase="audio", message=f"Recording chapter: {chapter.title}...")
    spoken = f"Chapter {chapter.number}. {chapter.title}.\n\n{text.text}"
    with _resting(SPEECH_KEY):
        sound = await ctx.state.voice.speak(spoken, text.language)
    meta = {"duration": sound.seconds, "bit_rate": sound.bit_rate, "by": sound.by}
    name = f"chapter{chapter.number}.mp3"
    file = await ctx.save(name, sound.mp3, "audio/mpeg", kind="audio", meta=meta)
    return Made(name=name, size=file.size, duration=sound.seconds)


@task(queue=QUEUE, retry=RETRY, lease=LEASE, priority=40, timeout=timedelta(minutes=10))
async def finalizing(
    ctx: Ctx[Workshop], params: ReportParams, texts: list[Text], pdfs: list[Made], recordings: list[Made]
) -> dict[str, Any]:
    """The whole as one book, and a list of everything in it."""
    ctx.progress(10, phase="finalizing", message="Binding the book...")
    printed = await _printed(ctx, params, [(_chapter(each.slug), each) for each in texts], book=True)
    await ctx.save(
        "full_nuclear.pdf", printed.pdf, "application/pdf", kind="pdf", meta={"pages": printed.pages}
    )
    ctx.progress(80, phase="finalizing", message="Writing the contents...")
    rows = zip(texts, pdfs, recordings, strict=True)
    listed = [
        {"chapter": _chapter(text.slug), "by": text.by, "pdf": pdf, "audio": sound}
        for text, pdf, sound in rows
    ]
    total = round(sum(each.duration or 0 for each in recordings), 1)
    whole = {"type": TYPE, "params": params, "pages": printed.pages, "duration": total, "documents": listed}
    await ctx.save("full_nuclear.json", msgspec.json.encode(whole), "application/json", kind="json")
    return {"documents": len(listed), "pages": printed.pages, "duration": total}


@contextmanager
def _resting(key: str) -> Generator[None]:
    """A provider that wants a rest gets it from every task that was submitted with its key."""
    try:
        yield
    except RateLimited as limited:
        raise RateLimited(key, limited.retry_after) from None


def _chapter(slug: str) -> Chapter:
    if slug not in BY_SLUG:
        raise Reject(f"There is no chapter {slug!r}.")
    return BY_SLUG[slug]


async def _printed(
    ctx: Ctx[Workshop], params: ReportParams, parts: list[tuple[Chapter, Text]], *, book: bool
) -> Printed:
    title = "The whole story" if book else parts[0][0].title
    people = [_shown(params.person1), _shown(params.person2)]
    content = {
        "people": people,
        "systems": [clean(each.replace("_", " ")) for each in params.systems],
        "chapters": [
            {
                "number": chapter.number,
                "title": chapter.title,
                "question": chapter.question,
                "by": clean(text.by),
                "paragraphs": [each.strip() for each in text.text.split("\n\n") if each.strip()],
            }
            for chapter, text in parts
        ],
    }
    names = " and ".join(person["name"] for person in people)
    meta = Meta(title=f"{title}: {names}", author=clean(parts[0][1].by), language=params.language)
    try:
        return await ctx.state.press.pdf(BOOK if book else CHAPTER, content, meta, LAYOUT, standard="a-2b")
    except InvalidError as problem:
        raise Reject(str(problem)) from problem


def _shown(person: Person) -> dict[str, str]:
    about = [person.birth_date, person.birth_place]
    return {"name": clean(person.name) or "?", "about": clean(", ".join(each for each in about if each))}


@job(TYPE, params=ReportParams, public=True)
def nuclear_v2(params: ReportParams) -> Graph:
    """Sixteen documents about two people: text, PDF and recording of each, and all of it as one book."""
    graph = Graph(TYPE)
    facts = graph.add(calculating(params), weight=contents.CALCULATING)
    texts: list[Any] = []
    pdfs: list[Any] = []
    recordings: list[Any] = []
    for chapter in CHAPTERS:
        slug = chapter.slug
        text = graph.add(
            text_generation(slug, params, facts.result),
            name=f"text {slug}",
            weight=contents.TEXT,
            limit_key=TEXT_KEY,
        )
        pdf = graph.add(pdf_generation(slug, params, text.result), name=f"pdf {slug}", weight=contents.PDF)
        sound = graph.add(
            audio_generation(slug, text.result),
            name=f"audio {slug}",
            weight=contents.AUDIO,
            limit_key=SPEECH_KEY,
        )
        texts.append(text.result)
        pdfs.append(pdf.result)
        recordings.append(sound.result)
    graph.add(finalizing(params, texts, pdfs, recordings), weight=contents.FINALIZING)
    return graph
