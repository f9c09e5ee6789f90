"""Templates: every field is printed, nothing runs off the page, and PDFs have tags and bookmarks."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator, Iterator
from typing import Any, cast

import pypdf
import pypdfium2  # type: ignore[import-untyped]
import pytest
from chromium import find_chromium

from holdfast.egress import EgressPolicy
from holdfast.systems.capture import BrowserPool
from holdfast.systems.exports.resumes import build_template_content, load_sample_documents, parse_resume
from holdfast.systems.exports.templates import BUILT_IN_TEMPLATES
from holdfast.systems.printing import FontCatalog, PageLayout, PageMargins, PdfMetadata, PdfRenderer

TYPST_TEMPLATES = ("minimal", "classic", "modern")
LAYOUT = PageLayout(page_size="Letter", margins=PageMargins(top=1, bottom=1, left=1, right=1))
# Designs without a heading for the summary or the contact line do not print these two headings.
OPTIONAL_LABELS = {"profile", "contact"}
TOKEN_DOCUMENT: dict[str, Any] = {
    "profile": {"name": "", "headline": "", "email": "", "phone": "", "location": "", "summary": "",
                "links": [{"url": "https://link.example/", "label": ""}, {"url": "https://plain.example/"}]},
    "experience": [{"role": "", "company": "", "location": "", "start": "", "end": "", "summary": "",
                    "highlights": ["", ""]}, {"role": "", "start": ""}],
    "education": [{"degree": "", "school": "", "location": "", "start": "", "end": "", "details": ["", ""]}],
    "skills": [{"name": "", "items": ["", ""]}],
    "projects": [{"name": "", "url": "https://project.example/", "start": "", "end": "", "summary": "",
                  "highlights": ["", ""]}],
    "languages": [{"name": "", "level": ""}],
    "awards": [{"name": "", "issuer": "", "date": ""}],
    "sections": [{"title": "", "paragraphs": ["", ""]}],
    "labels": {"profile": "", "experience": "", "education": "", "skills": "", "projects": "",
               "languages": "", "awards": "", "contact": "", "present": ""},
}  # fmt: skip


@pytest.fixture(scope="module")
def renderer() -> Iterator[PdfRenderer]:
    renderer = PdfRenderer(threads=1)
    yield renderer
    renderer.close()


@pytest.fixture
async def html_renderer() -> AsyncGenerator[PdfRenderer]:
    """A renderer with the browser that prints HTML templates."""
    find_chromium()
    async with BrowserPool(EgressPolicy()) as browsers:
        renderer = PdfRenderer(threads=1, browsers=browsers)
        yield renderer
        renderer.close()


def fill_with_tokens(value: Any, path: str, tokens: dict[str, str]) -> Any:
    """Give each text its own token: `q7q`. A URL gets it as its path."""
    if isinstance(value, dict):
        return {
            name: fill_with_tokens(inner, f"{path}.{name}", tokens)
            for name, inner in cast("dict[str, Any]", value).items()
        }
    if isinstance(value, list):
        return [fill_with_tokens(inner, f"{path}[{index}]", tokens) for index, inner in enumerate(value)]
    tokens[path] = f"q{len(tokens)}q"
    return f"{value}{tokens[path]}"


async def render(renderer: PdfRenderer, slug: str, document: dict[str, Any], **options: Any) -> bytes:
    resume = parse_resume(document)
    metadata = PdfMetadata(title="A title", author=resume.profile.name, language=resume.language)
    template = BUILT_IN_TEMPLATES[slug]
    content = build_template_content(resume)
    return (await renderer.render_pdf(template, content, metadata, LAYOUT, **options)).pdf


def read_text_and_links(pdf: bytes) -> str:
    reader = pypdf.PdfReader(io.BytesIO(pdf))
    links = [a.get_object() for page in reader.pages for a in page.get("/Annots", [])]
    targets = [str(link["/A"].get("/URI", "")) for link in links if "/A" in link]
    return " ".join([*(page.extract_text() for page in reader.pages), *targets]).casefold()


async def check_tokens(renderer: PdfRenderer, slug: str, document: dict[str, Any]) -> None:
    tokens: dict[str, str] = {}
    text = read_text_and_links(await render(renderer, slug, fill_with_tokens(document, "", tokens)))
    optional = {f".labels.{name}" for name in OPTIONAL_LABELS}
    missing = [path for path, token in tokens.items() if token not in text and path not in optional]
    assert missing == []


@pytest.mark.parametrize("slug", TYPST_TEMPLATES)
async def test_every_field_is_printed(renderer: PdfRenderer, slug: str) -> None:
    await check_tokens(renderer, slug, TOKEN_DOCUMENT)


async def test_every_field_is_printed_by_the_html_template(html_renderer: PdfRenderer) -> None:
    await check_tokens(html_renderer, "paper", TOKEN_DOCUMENT)


async def test_the_html_template_keeps_its_margins_and_has_tags_bookmarks_and_metadata(
    html_renderer: PdfRenderer,
) -> None:
    document = pypdfium2.PdfDocument(await render(html_renderer, "paper", make_long_document()))
    assert len(document) >= 3
    for number, page in enumerate(document, 1):
        check_text_is_within_margins(page, number, inches=0.95)  # the end of a broken word may hang over
    pdf = await render(html_renderer, "paper", dict(load_sample_documents())["jonas"].data)
    check_tags_bookmarks_and_metadata(pdf)


async def test_the_html_template_numbers_pages_from_two_on(html_renderer: PdfRenderer) -> None:
    data = dict(load_sample_documents())["jonas"].data
    for document, count in (({"profile": data["profile"]}, 1), (make_long_document(), 3)):
        pages = pypdf.PdfReader(io.BytesIO(await render(html_renderer, "paper", document))).pages
        assert len(pages) >= count
        for number, page in enumerate(pages, 1):
            has_number = f"{number} / {len(pages)}" in " ".join(page.extract_text().split())
            assert has_number == (len(pages) > 1), (number, len(pages))


@pytest.mark.parametrize("slug", TYPST_TEMPLATES)
async def test_every_field_is_printed_when_the_side_column_is_full(renderer: PdfRenderer, slug: str) -> None:
    long = {
        **TOKEN_DOCUMENT,
        "education": TOKEN_DOCUMENT["education"] * 12,
        "skills": [{"name": "", "items": [""] * 30} for _ in range(12)],
    }
    await check_tokens(renderer, slug, long)


def make_long_document() -> dict[str, Any]:
    data = dict(load_sample_documents())["jonas"].data
    word = "W" + "x" * 300
    positions = [
        {**job, "summary": f"{job.get('summary') or ''} {word}", "highlights": job["highlights"] * 3}
        for job in data["experience"] * 3
    ]
    profile = {**data["profile"], "name": f"Wolfeschlegelsteinhausenbergerdorff {'N' * 80}", "summary": word}
    links = [{"url": "https://example.org/" + "a-long-path/" * 30}]
    skills = [{"name": f"Group {n} {'y' * 60}", "items": [word, "Short"]} for n in range(8)]
    return {**data, "profile": {**profile, "links": links}, "experience": positions, "skills": skills}


@pytest.mark.parametrize("slug", TYPST_TEMPLATES)
async def test_long_words_and_names_stay_on_the_page(renderer: PdfRenderer, slug: str) -> None:
    document = pypdfium2.PdfDocument(await render(renderer, slug, make_long_document()))
    assert len(document) >= 3
    for number, page in enumerate(document):
        check_text_is_within_margins(page, number, inches=0.2)


@pytest.mark.parametrize("slug", TYPST_TEMPLATES)
async def test_page_numbers_and_no_heading_alone_at_the_foot(renderer: PdfRenderer, slug: str) -> None:
    data = dict(load_sample_documents())["jonas"].data
    for count in range(1, 12):  # headings fall on other places of the page each time
        document = {**data, "sections": [{"title": "HEADING", "paragraphs": ["text"] * 3}] * count * 3}
        document["profile"] = {**data["profile"], "summary": "words " * 25 * count}
        pages = pypdf.PdfReader(io.BytesIO(await render(renderer, slug, document))).pages
        for number, page in enumerate(pages, 1):
            lines = [line for line in page.extract_text().casefold().splitlines() if line.strip()]
            assert any(f"{number} / {len(pages)}" in line for line in lines) == (len(pages) > 1)
            body = [line for line in lines if " / " not in line and line.strip() != "jonas weber"]
            assert "heading" not in body[-1], (number, body[-3:])


@pytest.mark.parametrize("slug", TYPST_TEMPLATES)
async def test_tags_bookmarks_and_metadata(renderer: PdfRenderer, slug: str) -> None:
    check_tags_bookmarks_and_metadata(
        await render(renderer, slug, dict(load_sample_documents())["jonas"].data)
    )


def check_text_is_within_margins(page: Any, number: int, *, inches: float) -> None:
    text_page = page.get_textpage()
    width, _ = page.get_size()
    boxes = [text_page.get_charbox(index) for index in range(text_page.count_chars())]
    assert max(box[2] for box in boxes) <= width - max(inches, 0.5) * 72, number
    assert min(box[0] for box in boxes if box[2] > box[0]) >= inches * 72, number


def list_bookmark_titles(entries: list[Any]) -> list[str]:
    return [
        title
        for entry in entries
        for title in (list_bookmark_titles(entry) if isinstance(entry, list) else [entry.title])
    ]


def check_tags_bookmarks_and_metadata(pdf: bytes) -> None:
    reader = pypdf.PdfReader(io.BytesIO(pdf))
    root = cast("Any", reader.trailer["/Root"])
    assert root["/MarkInfo"]["/Marked"]
    assert "/StructTreeRoot" in root
    assert root["/Lang"] == "en"
    name, sections = cast("Any", reader.outline)
    assert name.title == "Jonas Weber"
    assert {"Experience", "Projects", "Selected publications"} <= set(list_bookmark_titles(sections))
    assert reader.metadata is not None
    assert (reader.metadata.title, reader.metadata.author) == ("A title", "Jonas Weber")


@pytest.mark.parametrize("slug", TYPST_TEMPLATES)
async def test_the_accessibility_standard_is_met(renderer: PdfRenderer, slug: str) -> None:
    """Typst refuses the standard when headings are not in order or a part has no tag."""
    assert await render(renderer, slug, dict(load_sample_documents())["jonas"].data, standard="ua-1")


async def test_fields_keep_their_direction(renderer: PdfRenderer) -> None:
    data = dict(load_sample_documents())["layla"].data
    jobs = [{**data["experience"][0], "company": "Acme Ltd."}]
    for slug in TYPST_TEMPLATES:
        pdf = await render(renderer, slug, {**data, "experience": jobs})
        text_page = pypdfium2.PdfDocument(pdf)[0].get_textpage()
        text = text_page.get_text_range()
        boxes = [(character, text_page.get_charbox(index)) for index, character in enumerate(text)]
        (base,) = [box for character, box in boxes if character == "A"]
        line = [(box[0], c) for c, box in boxes if c in "AcmeLtd." and abs(box[1] - base[1]) < 3]
        # From left to right, with the full stop at the end.
        assert "AcmeLtd." in "".join(c for _, c in sorted(line)), slug


async def test_emoji_are_printed_without_any_installed_font() -> None:
    renderer = PdfRenderer(fonts=FontCatalog(system=False, packages=False), threads=1)
    try:
        pdf = await render(
            renderer, "minimal", {"profile": {"name": "Eve", "summary": "Ship it 🚀 ✅ 😀 👩‍💻 ⭐ 🫠"}}
        )
    finally:
        renderer.close()
    fonts = [
        str(font.get_object()["/BaseFont"])
        for font in cast("Any", pypdf.PdfReader(io.BytesIO(pdf)).pages[0]["/Resources"])["/Font"].values()
    ]
    assert any("NotoEmoji" in font for font in fonts)
    assert "🚀" in read_text_and_links(pdf)
