"""Pages: what a document says is text, the page is as asked, and no letter becomes a box."""

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
from holdfast.systems.exports.documents import printable, read_resume, samples
from holdfast.systems.exports.templates import TEMPLATES
from holdfast.systems.printing import FontBook, Layout, Margins, Meta, Press, Standard
from holdfast.systems.printing.fonts import language_of, script_of

AT = datetime(2026, 11, 15, 12, 30, tzinfo=UTC)
HAN = Path(__file__).parent / "fonts"
HOSTILE = [
    '#image("/etc/passwd")',
    '#eval("1+1") #panic() $sum x$ *bold* _em_ `raw` = Heading',
    "\\u{41} @ref <label> // comment /* block */ #let x = 1",
    '"}) #read("/etc/hostname") #("',
    "<script>alert(1)</script><b>b</b> &amp; {{ 7 * 7 }} {% raw %}",
    "javascript:alert(1)",
    "[link](https://example.org) ---- -- ... ' \" ~",
]


@pytest.fixture(scope="module")
def press() -> Iterator[Press]:
    press = Press(threads=2)
    yield press
    press.close()


def sample(name: str) -> dict[str, Any]:
    return printable(read_resume(dict(samples())[name].data))


def text_of(pdf: bytes) -> str:
    return "\n".join(page.extract_text() for page in pypdf.PdfReader(io.BytesIO(pdf)).pages)


def squeezed(text: str) -> str:
    """Without the spaces and line ends that setting the text adds, and with ligatures apart."""
    for ligature, letters in (("ﬁ", "fi"), ("ﬂ", "fl"), ("ﬀ", "ff"), ("ﬃ", "ffi")):
        text = text.replace(ligature, letters)
    return "".join(text.split())


@pytest.mark.parametrize("slug", ["minimal", "classic", "modern"])
async def test_a_template_prints_every_field_of_the_samples(press: Press, slug: str) -> None:
    for name in ("amara", "jonas", "lucia"):
        content = sample(name)
        printed = await press.pdf(TEMPLATES[slug], content, Meta(title=name))
        text = squeezed(text_of(printed.pdf))
        assert printed.pages == (2 if name == "jonas" else 1)
        for job in content["experience"]:
            assert squeezed(job["role"]) in text
            assert all(squeezed(each)[:30] in text for each in job["highlights"])
        assert squeezed(content["education"][0]["degree"]) in text


@pytest.mark.parametrize("slug", ["minimal", "classic", "modern"])
async def test_markup_in_any_field_comes_out_as_text(press: Press, slug: str) -> None:
    plain = dict(samples())["jonas"].data
    for attack in HOSTILE:
        content = printable(read_resume(_poisoned(plain, attack)))
        printed = await press.pdf(TEMPLATES[slug], content, Meta(title=attack, author=attack))
        reader = pypdf.PdfReader(io.BytesIO(printed.pdf))
        # Classic sets the headings in small capitals; the text is there all the same.
        assert squeezed(attack).casefold() in squeezed(text_of(printed.pdf)).casefold()
        assert reader.metadata is not None
        assert reader.metadata.title == attack
        links = [a.get_object() for page in reader.pages for a in page.get("/Annots", [])]
        targets = [str(link["/A"].get("/URI", "")) for link in links if "/A" in link]
        assert not [target for target in targets if target.startswith("javascript:")]


def _poisoned(value: Any, attack: str) -> Any:
    if isinstance(value, str):
        return attack
    if isinstance(value, list):
        return [_poisoned(each, attack) for each in value]
    return {name: v if name in ("language", "labels") else _poisoned(v, attack) for name, v in value.items()}


async def test_the_page_is_as_asked(press: Press) -> None:
    margins = Margins(top=0, bottom=2, left=1.5, right=0.25)
    for size, expected in (("A4", (595, 842)), ("Letter", (612, 792)), ("Legal", (612, 1008))):
        layout = Layout(page_size=size, margins=margins, quality="high")  # type: ignore[arg-type]
        printed = await press.pdf(TEMPLATES["minimal"], sample("amara"), Meta(title="x"), layout)
        page = pypdf.PdfReader(io.BytesIO(printed.pdf)).pages[0]
        assert (round(page.mediabox.width), round(page.mediabox.height)) == expected
        left: list[float] = []

        def seen(text: str, cm: list[float], tm: list[float], *_: object, left: list[float] = left) -> None:
            if text.strip():
                left.append(cm[4] + tm[4])

        page.extract_text(visitor_text=seen)
        assert min(left) >= 1.5 * 72 - 3


async def test_the_file_says_who_and_what_it_is(press: Press) -> None:
    meta = Meta(title="Título", author="Lucía", subject="Résumé", keywords=("a", "b"), language="es")
    standards: tuple[Standard | None, ...] = (None, "a-2b", "a-3b")
    for standard in standards:
        printed = await press.pdf(TEMPLATES["modern"], sample("lucia"), meta, standard=standard)
        reader = pypdf.PdfReader(io.BytesIO(printed.pdf))
        assert reader.metadata is not None
        assert (reader.metadata.title, reader.metadata.author, reader.metadata.subject) == (
            "Título",
            "Lucía",
            "Résumé",
        )
        assert reader.metadata.creation_date == meta.at.replace(microsecond=0)
        assert cast("Any", reader.trailer["/Root"])["/Lang"] == "es"
        assert (b"pdfaid" in printed.pdf) == (standard is not None)
        fonts = [f.get_object() for f in reader.pages[0]["/Resources"]["/Font"].values()]  # type: ignore[index]
        for font in fonts:
            described = font["/DescendantFonts"][0].get_object()["/FontDescriptor"]
            assert {"/FontFile", "/FontFile2", "/FontFile3"} & described.keys(), "a font is not embedded"


@pytest.mark.parametrize(
    ("standard", "part", "level"), [("a-2b", "2", "B"), ("a-2u", "2", "U"), ("a-3b", "3", "B")]
)
async def test_what_an_archive_asks_of_a_file(
    press: Press, standard: Standard, part: str, level: str
) -> None:
    """The parts of PDF/A that can be looked up; no validator was to be had from a package index."""
    for slug, name in (("modern", "lucia"), ("classic", "jonas"), ("minimal", "layla")):
        printed = await press.pdf(TEMPLATES[slug], sample(name), Meta(title="x", at=AT), standard=standard)
        reader = pypdf.PdfReader(io.BytesIO(printed.pdf))
        root: Any = reader.trailer["/Root"]
        assert reader.trailer.get("/Encrypt") is None
        assert len(cast("Any", reader.trailer["/ID"])) == 2
        assert "/JavaScript" not in str(root)
        assert not {"/AA", "/OpenAction", "/XFA"} & set(root)
        told = root["/Metadata"].get_object()
        assert "/Filter" not in told  # readable without a PDF reader
        packet = ET.fromstring(told.get_data())
        found = {each.tag: (each.text or "") for each in packet.iter()}
        assert found["{http://www.aiim.org/pdfa/ns/id/}part"] == part
        assert found["{http://www.aiim.org/pdfa/ns/id/}conformance"] == level
        assert datetime.fromisoformat(found["{http://ns.adobe.com/xap/1.0/}CreateDate"]) == AT
        (intent,) = root["/OutputIntents"]
        assert intent.get_object()["/S"] == "/GTS_PDFA1"
        profile = intent.get_object()["/DestOutputProfile"].get_object()
        assert profile.get_data()[36:40] == b"acsp"  # an ICC profile
        for page in reader.pages:
            _check_page(page)


def _check_page(page: Any) -> None:
    for font in page["/Resources"].get("/Font", {}).values():
        inner = font.get_object()["/DescendantFonts"][0].get_object()
        described = inner["/FontDescriptor"]
        assert {"/FontFile", "/FontFile2", "/FontFile3"} & described.keys(), "a font is not embedded"
        assert "/ToUnicode" in font.get_object()
    for note in page.get("/Annots", []):
        kind = note.get_object()
        assert kind["/Subtype"] == "/Link"
        assert kind["/F"] & 4  # is printed too


async def test_without_colour_every_ink_is_grey(press: Press) -> None:
    grey, colour = Layout(color_mode="grayscale", quality="draft"), Layout(quality="draft")
    for slug in ("classic", "modern"):
        assert _has_colour(
            (await press.previews(TEMPLATES[slug], sample("amara"), Meta(title="x"), colour))[0]
        )
        assert not _has_colour(
            (await press.previews(TEMPLATES[slug], sample("amara"), Meta(title="x"), grey))[0]
        )


def _has_colour(png: bytes) -> bool:
    width, height, _, kind = struct.unpack(">IIBB", png[16:26])
    depth = {2: 3, 6: 4}[kind]
    body, place = b"", 8
    while place < len(png):
        length, tag = struct.unpack(">I4s", png[place : place + 8])
        body += png[place + 8 : place + 8 + length] if tag == b"IDAT" else b""
        place += length + 12
    raw, line, row = zlib.decompress(body), width * depth, bytearray(width * depth)
    for y in range(height):
        start = y * (line + 1)
        row = _unfiltered(raw[start], bytearray(raw[start + 1 : start + 1 + line]), row, depth)
        for x in range(0, line, depth * 4):
            if max(row[x : x + 3]) - min(row[x : x + 3]) > 2:
                return True
    return False


def _unfiltered(kind: int, row: bytearray, above: bytearray, depth: int) -> bytearray:
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
            near = min(
                (abs(guess - left), 0, left),
                (abs(guess - above[i]), 1, above[i]),
                (abs(guess - corner), 2, corner),
            )
            row[i] = (row[i] + near[2]) & 255
    return row


async def test_previews_grow_with_the_quality(press: Press) -> None:
    sizes: list[int] = []
    for quality in ("draft", "normal", "high"):
        pages = await press.previews(
            TEMPLATES["minimal"],
            sample("jonas"),
            Meta(title="x"),
            Layout(quality=quality),
        )
        assert len(pages) == 2
        assert all(page.startswith(b"\x89PNG") for page in pages)
        sizes.append(int.from_bytes(pages[0][16:20], "big"))
    assert sizes == sorted(set(sizes))


async def test_five_hundred_pages(press: Press) -> None:
    content = sample("amara")
    content["sections"] = [
        {"title": f"Chapter {n}", "paragraphs": ["lorem ipsum dolor sit amet " * 50] * 52} for n in range(50)
    ]
    printed = await press.pdf(TEMPLATES["minimal"], content, Meta(title="long"))
    assert printed.pages >= 500


async def test_a_script_without_a_font_is_named_instead_of_drawn_as_boxes() -> None:
    bare = Press(fonts=FontBook(system=False, wheels=False), threads=1)
    try:
        with pytest.raises(InvalidError) as refused:
            await bare.pdf(TEMPLATES["minimal"], sample("yuki"), Meta(title="x"))
        assert "Han" in str(refused.value)
        assert "fonts" in str(refused.value)
        # Latin, Greek, Cyrillic, Hebrew and Arabic need nothing but what comes with Typst.
        content = sample("layla")
        content["sections"] = [{"title": "Ελληνικά", "paragraphs": ["Привет", "שלום", "Łódź Øre Þing"]}]
        printed = await bare.pdf(TEMPLATES["modern"], content, Meta(title="x", language="ar"))
        assert "Привет" in text_of(printed.pdf)
    finally:
        bare.close()


async def test_a_font_in_a_folder_writes_its_script() -> None:
    press = Press(fonts=FontBook([HAN], system=False, wheels=False), threads=1)
    try:
        content = printable(
            read_resume({"profile": {"name": "佐藤由紀", "headline": "職務経歴書 软件工程师"}})
        )
        printed = await press.pdf(TEMPLATES["classic"], content, Meta(title="简历"))
        assert "佐藤由紀" in text_of(printed.pdf)
        assert b"NotoSans" in printed.pdf
    finally:
        press.close()


@pytest.mark.parametrize(
    ("language", "name", "headline", "font"),
    [
        ("ja", "佐藤由紀", "ソフトウェアエンジニア", "KurintoSansJP"),
        ("zh", "王小明", "软件工程师", "KurintoSansSC"),
        ("ko", "김민지", "백엔드 개발자", "KurintoSansKR"),
        ("ar", "ليلى حداد", "مهندسة", "KurintoSans"),
    ],
)
async def test_the_font_wheel_writes_many_scripts(language: str, name: str, headline: str, font: str) -> None:
    press = Press(fonts=FontBook(system=False), threads=1)
    content = printable(read_resume({"profile": {"name": name, "headline": headline}, "language": language}))
    try:
        printed = await press.pdf(TEMPLATES["minimal"], content, Meta(title=name, language=language))
    finally:
        press.close()
    page = pypdf.PdfReader(io.BytesIO(printed.pdf)).pages[0]
    fonts = [f.get_object()["/BaseFont"] for f in cast("Any", page["/Resources"])["/Font"].values()]
    assert any(font in each for each in fonts), fonts
    if language != "ar":  # its letters are joined, and in the order of the page
        assert name in page.extract_text()


def test_scripts_and_languages_are_guessed_from_the_letters() -> None:
    assert [script_of(c) for c in "aж佐シ한ع1 ,"] == [
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
    assert {text: language_of(text) for text in texts} == texts


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
def test_a_document_that_does_not_fit_is_refused_by_field(data: object, field: str) -> None:
    with pytest.raises(InvalidError) as refused:
        read_resume(data)
    assert refused.value.field == field
