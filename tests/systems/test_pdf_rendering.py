"""PDF rendering: content is rendered as text, the layout is exact, and no character becomes an empty box."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree as ET

import pypdf
import pytest

from holdfast.errors import InvalidError
from holdfast.systems.exports.resumes import build_template_content, load_sample_documents, parse_resume
from holdfast.systems.exports.templates import BUILT_IN_TEMPLATES
from holdfast.systems.printing import (
    FontCatalog,
    PageLayout,
    PageMargins,
    PdfMetadata,
    PdfRenderer,
    PdfStandard,
)
from holdfast.systems.printing.fonts import find_letter_script, guess_language

CREATED_AT = datetime(2026, 11, 15, 12, 30, tzinfo=UTC)
FONT_FOLDER = Path(__file__).parent / "fonts"
INJECTIONS = [
    '#image("/etc/passwd")',
    '#eval("1+1") #panic() $sum x$ *bold* _em_ `raw` = Heading',
    "\\u{41} @ref <label> // comment /* block */ #let x = 1",
    '"}) #read("/etc/hostname") #("',
    "<script>alert(1)</script><b>b</b> &amp; {{ 7 * 7 }} {% raw %}",
    "javascript:alert(1)",
    "[link](https://example.org) ---- -- ... ' \" ~",
]


@pytest.fixture(scope="module")
def renderer() -> Iterator[PdfRenderer]:
    renderer = PdfRenderer(threads=2)
    yield renderer
    renderer.close()


def load_sample_content(name: str) -> dict[str, Any]:
    return build_template_content(parse_resume(dict(load_sample_documents())[name].data))


def extract_text(pdf: bytes) -> str:
    return "\n".join(page.extract_text() for page in pypdf.PdfReader(io.BytesIO(pdf)).pages)


def strip_spaces(text: str) -> str:
    """Remove spaces and break marks that typesetting adds, and replace ligatures by letters."""
    for ligature, letters in (("ﬁ", "fi"), ("ﬂ", "fl"), ("ﬀ", "ff"), ("ﬃ", "ffi")):
        text = text.replace(ligature, letters)
    return "".join(text.replace("\u200b", "").split())


@pytest.mark.parametrize("slug", ["minimal", "classic", "modern"])
async def test_templates_print_every_field_of_the_samples(renderer: PdfRenderer, slug: str) -> None:
    for name in ("amara", "jonas", "lucia"):
        content = load_sample_content(name)
        rendered = await renderer.render_pdf(BUILT_IN_TEMPLATES[slug], content, PdfMetadata(title=name))
        text = strip_spaces(extract_text(rendered.pdf))
        assert rendered.page_count == (2 if name == "jonas" else 1)
        for job in content["experience"]:
            assert strip_spaces(job["role"]) in text
            assert all(strip_spaces(highlight)[:30] in text for highlight in job["highlights"])
        assert strip_spaces(content["education"][0]["degree"]) in text


@pytest.mark.parametrize("slug", ["minimal", "classic", "modern"])
async def test_markup_in_any_field_is_rendered_as_text(renderer: PdfRenderer, slug: str) -> None:
    document = dict(load_sample_documents())["jonas"].data
    for injection in INJECTIONS:
        content = build_template_content(parse_resume(_fill_strings(document, injection)))
        rendered = await renderer.render_pdf(
            BUILT_IN_TEMPLATES[slug], content, PdfMetadata(title=injection, author=injection)
        )
        reader = pypdf.PdfReader(io.BytesIO(rendered.pdf))
        # The template classic prints headings in small capitals, so case is ignored.
        assert strip_spaces(injection).casefold() in strip_spaces(extract_text(rendered.pdf)).casefold()
        assert reader.metadata is not None
        assert reader.metadata.title == injection
        links = [a.get_object() for page in reader.pages for a in page.get("/Annots", [])]
        targets = [str(link["/A"].get("/URI", "")) for link in links if "/A" in link]
        assert not [target for target in targets if target.startswith("javascript:")]


def _fill_strings(value: Any, injection: str) -> Any:
    if isinstance(value, str):
        return injection
    if isinstance(value, list):
        return [_fill_strings(item, injection) for item in value]
    return {
        name: v if name in ("language", "labels") else _fill_strings(v, injection)
        for name, v in value.items()
    }


async def test_page_size_and_margins(renderer: PdfRenderer) -> None:
    margins = PageMargins(top=0, bottom=2, left=1.5, right=0.25)
    for size, expected in (("A4", (595, 842)), ("Letter", (612, 792)), ("Legal", (612, 1008))):
        layout = PageLayout(page_size=size, margins=margins, quality="high")  # type: ignore[arg-type]
        rendered = await renderer.render_pdf(
            BUILT_IN_TEMPLATES["minimal"], load_sample_content("amara"), PdfMetadata(title="x"), layout
        )
        page = pypdf.PdfReader(io.BytesIO(rendered.pdf)).pages[0]
        assert (round(page.mediabox.width), round(page.mediabox.height)) == expected
        left: list[float] = []

        def collect_left_edge(
            text: str, cm: list[float], tm: list[float], *_: object, left: list[float] = left
        ) -> None:
            if text.strip():
                left.append(cm[4] + tm[4])

        page.extract_text(visitor_text=collect_left_edge)
        assert min(left) >= 1.5 * 72 - 3


async def test_pdf_metadata_and_embedded_fonts(renderer: PdfRenderer) -> None:
    metadata = PdfMetadata(
        title="Título", author="Lucía", subject="Résumé", keywords=("a", "b"), language="es"
    )
    standards: tuple[PdfStandard | None, ...] = (None, "a-2b", "a-3b")
    for standard in standards:
        rendered = await renderer.render_pdf(
            BUILT_IN_TEMPLATES["modern"], load_sample_content("lucia"), metadata, standard=standard
        )
        reader = pypdf.PdfReader(io.BytesIO(rendered.pdf))
        assert reader.metadata is not None
        assert (reader.metadata.title, reader.metadata.author, reader.metadata.subject) == (
            "Título",
            "Lucía",
            "Résumé",
        )
        assert reader.metadata.creation_date == metadata.created_at.replace(microsecond=0)
        assert cast("Any", reader.trailer["/Root"])["/Lang"] == "es"
        assert (b"pdfaid" in rendered.pdf) == (standard is not None)
        fonts = [f.get_object() for f in reader.pages[0]["/Resources"]["/Font"].values()]  # type: ignore[index]
        for font in fonts:
            descriptor = font["/DescendantFonts"][0].get_object()["/FontDescriptor"]
            assert {"/FontFile", "/FontFile2", "/FontFile3"} & descriptor.keys(), "a font is not embedded"


@pytest.mark.parametrize(
    ("standard", "part", "level"), [("a-2b", "2", "B"), ("a-2u", "2", "U"), ("a-3b", "3", "B")]
)
async def test_pdf_a_requirements(
    renderer: PdfRenderer, standard: PdfStandard, part: str, level: str
) -> None:
    """Requirements of PDF/A that can be checked in the file. There is no validator on PyPI."""
    for slug, name in (("modern", "lucia"), ("classic", "jonas"), ("minimal", "layla")):
        rendered = await renderer.render_pdf(
            BUILT_IN_TEMPLATES[slug],
            load_sample_content(name),
            PdfMetadata(title="x", created_at=CREATED_AT),
            standard=standard,
        )
        reader = pypdf.PdfReader(io.BytesIO(rendered.pdf))
        root: Any = reader.trailer["/Root"]
        assert reader.trailer.get("/Encrypt") is None
        assert len(cast("Any", reader.trailer["/ID"])) == 2
        assert "/JavaScript" not in str(root)
        assert not {"/AA", "/OpenAction", "/XFA"} & set(root)
        xmp = root["/Metadata"].get_object()
        assert "/Filter" not in xmp  # readable without a PDF reader
        packet = ET.fromstring(xmp.get_data())
        properties = {element.tag: (element.text or "") for element in packet.iter()}
        assert properties["{http://www.aiim.org/pdfa/ns/id/}part"] == part
        assert properties["{http://www.aiim.org/pdfa/ns/id/}conformance"] == level
        assert datetime.fromisoformat(properties["{http://ns.adobe.com/xap/1.0/}CreateDate"]) == CREATED_AT
        (intent,) = root["/OutputIntents"]
        assert intent.get_object()["/S"] == "/GTS_PDFA1"
        profile = intent.get_object()["/DestOutputProfile"].get_object()
        assert profile.get_data()[36:40] == b"acsp"  # an ICC profile
        for page in reader.pages:
            _check_page(page)


def _check_page(page: Any) -> None:
    for font in page["/Resources"].get("/Font", {}).values():
        inner = font.get_object()["/DescendantFonts"][0].get_object()
        descriptor = inner["/FontDescriptor"]
        assert {"/FontFile", "/FontFile2", "/FontFile3"} & descriptor.keys(), "a font is not embedded"
        assert "/ToUnicode" in font.get_object()
    for reference in page.get("/Annots", []):
        annotation = reference.get_object()
        assert annotation["/Subtype"] == "/Link"
        assert annotation["/F"] & 4  # the flag Print


async def test_grayscale_has_no_colours(renderer: PdfRenderer) -> None:
    grey, colour = PageLayout(color_mode="grayscale", quality="draft"), PageLayout(quality="draft")
    for slug in ("classic", "modern"):
        assert _has_colour(
            (
                await renderer.render_previews(
                    BUILT_IN_TEMPLATES[slug], load_sample_content("amara"), PdfMetadata(title="x"), colour
                )
            )[0]
        )
        assert not _has_colour(
            (
                await renderer.render_previews(
                    BUILT_IN_TEMPLATES[slug], load_sample_content("amara"), PdfMetadata(title="x"), grey
                )
            )[0]
        )


def _has_colour(png: bytes) -> bool:
    width, height, _, kind = struct.unpack(">IIBB", png[16:26])
    depth = {2: 3, 6: 4}[kind]
    body, position = b"", 8
    while position < len(png):
        length, tag = struct.unpack(">I4s", png[position : position + 8])
        body += png[position + 8 : position + 8 + length] if tag == b"IDAT" else b""
        position += length + 12
    raw, line, row = zlib.decompress(body), width * depth, bytearray(width * depth)
    for y in range(height):
        start = y * (line + 1)
        row = _undo_png_filter(raw[start], bytearray(raw[start + 1 : start + 1 + line]), row, depth)
        for x in range(0, line, depth * 4):
            if max(row[x : x + 3]) - min(row[x : x + 3]) > 2:
                return True
    return False


def _undo_png_filter(kind: int, row: bytearray, above: bytearray, depth: int) -> bytearray:
    for i in range(len(row)):
        left = row[i - depth] if i >= depth else 0
        corner = above[i - depth] if i >= depth else 0
        if kind == 1:
            row[i] = (row[i] + left) & 255
        elif kind == 2:
            row[i] = (row[i] + above[i]) & 255
        elif kind == 3:
            row[i] = (row[i] + (left + above[i]) // 2) & 255
        elif kind == 4:
            guess = left + above[i] - corner
            nearest = min(
                (abs(guess - left), 0, left),
                (abs(guess - above[i]), 1, above[i]),
                (abs(guess - corner), 2, corner),
            )
            row[i] = (row[i] + nearest[2]) & 255
    return row


async def test_quality_sets_the_resolution_of_previews(renderer: PdfRenderer) -> None:
    widths: list[int] = []
    for quality in ("draft", "normal", "high"):
        pages = await renderer.render_previews(
            BUILT_IN_TEMPLATES["minimal"],
            load_sample_content("jonas"),
            PdfMetadata(title="x"),
            PageLayout(quality=quality),
        )
        assert len(pages) == 2
        assert all(page.startswith(b"\x89PNG") for page in pages)
        widths.append(int.from_bytes(pages[0][16:20], "big"))
    assert widths == sorted(set(widths))


async def test_a_document_of_five_hundred_pages(renderer: PdfRenderer) -> None:
    content = load_sample_content("amara")
    content["sections"] = [
        {"title": f"Chapter {n}", "paragraphs": ["lorem ipsum dolor sit amet " * 50] * 52} for n in range(50)
    ]
    rendered = await renderer.render_pdf(BUILT_IN_TEMPLATES["minimal"], content, PdfMetadata(title="long"))
    assert rendered.page_count >= 500


async def test_an_error_names_a_script_without_a_font() -> None:
    renderer = PdfRenderer(fonts=FontCatalog(system=False, packages=False), threads=1)
    try:
        with pytest.raises(InvalidError) as caught:
            await renderer.render_pdf(
                BUILT_IN_TEMPLATES["minimal"], load_sample_content("yuki"), PdfMetadata(title="x")
            )
        assert "Han" in str(caught.value)
        assert "fonts" in str(caught.value)
        # A title is metadata and needs no font.
        titled = await renderer.render_pdf(
            BUILT_IN_TEMPLATES["minimal"], load_sample_content("amara"), PdfMetadata(title="简历")
        )
        assert titled.page_count == 1
        # The fonts inside Typst cover Latin, Greek, Cyrillic, Hebrew and Arabic.
        content = load_sample_content("layla")
        content["sections"] = [{"title": "Ελληνικά", "paragraphs": ["Привет", "שלום", "Łódź Øre Þing"]}]
        rendered = await renderer.render_pdf(
            BUILT_IN_TEMPLATES["modern"], content, PdfMetadata(title="x", language="ar")
        )
        assert "Привет" in extract_text(rendered.pdf)
    finally:
        renderer.close()


async def test_fonts_in_a_folder_are_used() -> None:
    renderer = PdfRenderer(fonts=FontCatalog([FONT_FOLDER], system=False, packages=False), threads=1)
    try:
        content = build_template_content(
            parse_resume({"profile": {"name": "佐藤由紀", "headline": "職務経歴書 软件工程师"}})
        )
        rendered = await renderer.render_pdf(
            BUILT_IN_TEMPLATES["classic"], content, PdfMetadata(title="简历")
        )
        assert "佐藤由紀" in extract_text(rendered.pdf)
        assert b"NotoSans" in rendered.pdf
    finally:
        renderer.close()


@pytest.mark.parametrize(
    ("language", "name", "headline", "font"),
    [
        ("ja", "佐藤由紀", "ソフトウェアエンジニア", "KurintoSansJP"),
        ("zh", "王小明", "软件工程师", "KurintoSansSC"),
        ("ko", "김민지", "백엔드 개발자", "KurintoSansKR"),
        ("ar", "ليلى حداد", "مهندسة", "KurintoSans"),
    ],
)
async def test_font_packages_cover_many_scripts(language: str, name: str, headline: str, font: str) -> None:
    renderer = PdfRenderer(fonts=FontCatalog(system=False), threads=1)
    content = build_template_content(
        parse_resume({"profile": {"name": name, "headline": headline}, "language": language})
    )
    try:
        rendered = await renderer.render_pdf(
            BUILT_IN_TEMPLATES["minimal"], content, PdfMetadata(title=name, language=language)
        )
    finally:
        renderer.close()
    page = pypdf.PdfReader(io.BytesIO(rendered.pdf)).pages[0]
    fonts = [f.get_object()["/BaseFont"] for f in cast("Any", page["/Resources"])["/Font"].values()]
    assert any(font in name for name in fonts), fonts
    if language != "ar":  # Arabic letters are joined and in visual order
        assert name in page.extract_text()


def test_guess_scripts_and_languages() -> None:
    assert [find_letter_script(c) for c in "aж佐シ한ع1 ,"] == [
        "Latin",
        "Cyrillic",
        "Han",
        "Kana",
        "Hangul",
        "Arabic",
        None,
        None,
        None,
    ]
    texts = {
        "Hello": "en",
        "Привет": "ru",
        "简历": "zh",
        "職務の経歴": "ja",
        "이력서": "ko",
        "مرحبا": "ar",
        "": "en",
    }
    assert {text: guess_language(text) for text in texts} == texts


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({}, "data"),
        ({"profile": {}}, "data.profile"),
        ({"profile": {"name": ""}}, "data.profile.name"),
        ({"profile": {"name": "x", "email": 1}}, "data.profile.email"),
        ({"profile": {"name": "x"}, "extra": 1}, "data"),
        ({"profile": {"name": "x"}, "experience": [{"role": "x" * 501}]}, "data.experience[0].role"),
        ({"profile": {"name": "x"}, "language": "English"}, "data.language"),
        ([], "data"),
        (None, "data"),
    ],
)
def test_invalid_documents_name_the_field(data: object, field: str) -> None:
    with pytest.raises(InvalidError) as caught:
        parse_resume(data)
    assert caught.value.field == field
