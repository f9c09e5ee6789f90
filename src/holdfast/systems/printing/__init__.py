"""Pages on paper: Typst templates and HTML templates to PDF, and PNG previews of them.

A template is code and is trusted; content is data and is not. Content reaches Typst as JSON in an input, and
an HTML template through an engine that escapes, so that markup in a field comes out as the text it is. Typst
works without the interpreter's lock, in threads of its own; each has its own compiler, all share the fonts.
"""

from __future__ import annotations

import asyncio
import io
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import msgspec
import pypdf
import typst

from holdfast.errors import InvalidError
from holdfast.systems.printing.chromium import Chromium
from holdfast.systems.printing.fonts import RIGHT_TO_LEFT, FontBook, language_of

__all__ = ["FontBook", "Layout", "Margins", "Meta", "Press", "Printed", "Standard"]

T = TypeVar("T")
PageSize = Literal["A4", "Letter", "Legal"]
Quality = Literal["draft", "normal", "high"]
ColorMode = Literal["color", "grayscale"]
Standard = Literal["a-2b", "a-2u", "a-3b", "ua-1"]

INCHES: dict[PageSize, tuple[float, float]] = {
    "A4": (8.2677, 11.6929),
    "Letter": (8.5, 11.0),
    "Legal": (8.5, 14.0),
}
PREVIEW_PPI: dict[Quality, float] = {"draft": 72.0, "normal": 144.0, "high": 220.0}
PACKAGES = Path(__file__).parent / "packages"
MOST_BYTES = 8 * 1024 * 1024
SANS = ("Source Sans 3", "Noto Sans", "Open Sans", "Liberation Sans", "DejaVu Sans", "Libertinus Serif")
SERIF = ("Libertinus Serif", "Noto Serif")
DISPLAY = ("Libertinus Serif",)


class Margins(msgspec.Struct, frozen=True, kw_only=True):
    """In inches."""

    top: float = 0.75
    bottom: float = 0.75
    left: float = 0.8
    right: float = 0.8


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How a document is put on pages. `quality` sets the care of line breaks and the previews' resolution."""

    page_size: PageSize = "A4"
    margins: Margins = Margins()
    quality: Quality = "normal"
    color_mode: ColorMode = "color"


@dataclass(frozen=True, kw_only=True)
class Meta:
    """What the file says about itself."""

    title: str
    author: str = ""
    subject: str = ""
    keywords: tuple[str, ...] = ()
    language: str | None = None
    at: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True)
class Printed:
    pdf: bytes
    pages: int


class Press:
    """Keeps the fonts and compilers; make one and share it. Close it to end its threads."""

    def __init__(
        self, *, fonts: FontBook | None = None, threads: int | None = None, chromium: str | None = None
    ) -> None:
        self._threads = ThreadPoolExecutor(threads or os.cpu_count() or 2, thread_name_prefix="press")
        self._own = threading.local()
        self._book = fonts
        self._lock = threading.Lock()
        self._chromium = Chromium(chromium)

    @property
    def book(self) -> FontBook:
        with self._lock:
            if self._book is None:
                self._book = FontBook()
            return self._book

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def pdf(
        self,
        template: Path,
        content: Mapping[str, Any],
        meta: Meta,
        layout: Layout | None = None,
        *,
        standard: Standard | None = None,
    ) -> Printed:
        layout = layout or Layout()
        if template.suffix != ".typ":
            if standard is not None:
                raise InvalidError(
                    "HTML templates cannot be PDF/A.",
                    fix="Choose a Typst template.",
                    field="options.standard",
                )
            inputs = await self._inputs(content, meta, layout)
            return await self._finished(await self._chromium.pdf(template, inputs, layout.margins))
        return await self._finished(
            await self._typeset(
                template, content, meta, layout, {"format": "pdf", "pdf_standards": standard or []}
            )
        )

    async def previews(
        self, template: Path, content: Mapping[str, Any], meta: Meta, layout: Layout | None = None
    ) -> list[bytes]:
        """The pages as PNG images, by Typst templates only."""
        layout = layout or Layout()
        if template.suffix != ".typ":
            raise InvalidError("Previews need a Typst template.", field="templateSlug")
        how = {"format": "png", "ppi": PREVIEW_PPI[layout.quality]}
        made = await self._typeset(template, content, meta, layout, how)
        return [made] if isinstance(made, bytes) else made

    async def _finished(self, made: bytes | list[bytes]) -> Printed:
        pdf = cast("bytes", made)
        pages = await self._run(lambda: len(pypdf.PdfReader(io.BytesIO(pdf)).pages))
        return Printed(pdf, pages)

    async def _typeset(
        self, template: Path, content: Mapping[str, Any], meta: Meta, layout: Layout, how: dict[str, Any]
    ) -> bytes | list[bytes]:
        inputs = await self._inputs(content, meta, layout)
        # Typst wants an offset of its own kind; seconds are understood by all versions.
        return await self._run(
            partial(self._compile, template, inputs, {**how, "timestamp": int(meta.at.timestamp())})
        )

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _inputs(self, content: Mapping[str, Any], meta: Meta, layout: Layout) -> dict[str, str]:
        plain = msgspec.json.encode(content)
        if len(plain) > MOST_BYTES:
            raise InvalidError(
                f"The document has {len(plain):,} bytes of text; at most {MOST_BYTES:,} are printed.",
                fix="Split it.",
                field="data",
            )
        text = plain.decode()
        told = await self._run(partial(self._layout, text, meta, layout))
        return {"content": text, "layout": msgspec.json.encode(told).decode()}

    def _layout(self, text: str, meta: Meta, layout: Layout) -> dict[str, Any]:
        readable = "".join(_strings(msgspec.json.decode(text))) + meta.title + meta.author
        language = (meta.language or language_of(readable)).lower()
        coverage = self.book.cover(readable, language)
        if coverage.missing:
            raise _unwritable(coverage.missing)
        width, height = INCHES[layout.page_size]
        pick = self.book.pick
        fallback = [*coverage.families, *pick(("DejaVu Sans Mono",))]
        return {
            **msgspec.to_builtins(layout),
            "width": width,
            "height": height,
            "title": meta.title,
            "author": meta.author,
            "description": meta.subject,
            "keywords": list(meta.keywords),
            "language": language.split("-")[0],
            "right_to_left": language.split("-")[0] in RIGHT_TO_LEFT,
            "fonts": {
                "sans": pick(SANS),
                "serif": pick(SERIF),
                "display": pick(DISPLAY),
                "fallback": fallback,
            },
        }

    def _compile(self, template: Path, inputs: dict[str, str], how: dict[str, Any]) -> bytes | list[bytes]:
        try:
            made = self._compiler(template).compile(sys_inputs=inputs, **how)
        except typst.TypstError as problem:
            # Its text may quote the document: the cause is for the log of the template's author only.
            raise InvalidError(
                f"The template {template.stem} cannot print this document.",
                fix="Check the template with a sample document.",
                field="templateSlug",
            ) from problem
        return cast("bytes | list[bytes]", made)

    def _compiler(self, template: Path) -> typst.Compiler:
        kept: dict[Path, typst.Compiler] = self._own.__dict__.setdefault("compilers", {})
        if template not in kept:
            kept[template] = typst.Compiler(
                str(template),
                root=str(template.parent),
                font_paths=self.book.fonts,
                package_path=str(PACKAGES),
                package_cache_path=str(PACKAGES),
            )
        return kept[template]


def _strings(value: object) -> Sequence[str]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, dict):
        return [text for inner in cast("dict[str, object]", value).values() for text in _strings(inner)]
    if isinstance(value, list):
        return [text for inner in cast("list[object]", value) for text in _strings(inner)]
    return ()


def _unwritable(missing: Mapping[str, str]) -> InvalidError:
    names = " and ".join(f"{script} ({letters[:5]})" for script, letters in missing.items())
    return InvalidError(
        f"No font on this machine can write {names}.",
        fix="Install holdfast[fonts], or the system's Noto fonts (Debian: fonts-noto, fonts-noto-cjk).",
        field="data",
    )
