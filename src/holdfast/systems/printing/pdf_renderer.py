"""Render Typst and HTML templates as PDF, and Typst templates as PNG previews.

Templates are code and are trusted; content is data and is not. Typst receives content as JSON in an input,
and HTML templates receive it through an engine that escapes it. Markup in a field is therefore printed as
text. Typst releases the interpreter lock and runs in threads; each thread has its own compilers, and all
share the fonts.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import typst

from holdfast.errors import InvalidError
from holdfast.systems.capture import BrowserPool
from holdfast.systems.printing.chromium import ChromiumPrinter, add_pdf_metadata, count_pdf_pages
from holdfast.systems.printing.fonts import RIGHT_TO_LEFT_LANGUAGES, FontCatalog, guess_language
from holdfast.systems.printing.page_layout import (
    PAGE_SIZE_INCHES,
    PageLayout,
    PdfMetadata,
    PdfStandard,
    RenderedPdf,
    RenderQuality,
)

T = TypeVar("T")

PREVIEW_PIXELS_PER_INCH: dict[RenderQuality, float] = {"draft": 72.0, "normal": 144.0, "high": 220.0}
TYPST_PACKAGE_FOLDER = Path(__file__).parent / "packages"
MAX_TEMPLATE_CONTENT_BYTES = 8 * 1024 * 1024
SANS_FONT_FAMILIES = (
    "Source Sans 3",
    "Noto Sans",
    "Open Sans",
    "Liberation Sans",
    "DejaVu Sans",
    "Libertinus Serif",
)
SERIF_FONT_FAMILIES = ("Libertinus Serif", "Noto Serif")
DISPLAY_FONT_FAMILIES = ("Libertinus Serif",)


class PdfRenderer:
    """Renderer of templates as PDF or PNG. Create one renderer, share it, and close it at the end.

    HTML templates are printed by `browsers`, which belongs to the caller.
    """

    def __init__(
        self,
        *,
        fonts: FontCatalog | None = None,
        threads: int | None = None,
        browsers: BrowserPool | None = None,
    ) -> None:
        self._executor = ThreadPoolExecutor(threads or os.cpu_count() or 2, thread_name_prefix="renderer")
        self._thread_state = threading.local()
        self._fonts = fonts
        self._fonts_lock = threading.Lock()
        self._printer = ChromiumPrinter(browsers) if browsers is not None else None

    @property
    def fonts(self) -> FontCatalog:
        """Catalog of the available fonts, loaded at first use."""
        with self._fonts_lock:
            if self._fonts is None:
                self._fonts = FontCatalog()
            return self._fonts

    def close(self) -> None:
        """Stop the threads of the renderer."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def render_pdf(
        self,
        template: Path,
        content: Mapping[str, Any],
        metadata: PdfMetadata,
        layout: PageLayout | None = None,
        *,
        standard: PdfStandard | None = None,
    ) -> RenderedPdf:
        """Fill a template with content and return the PDF.

        Raise InvalidError if the template cannot render the content, or if no font has its characters.
        """
        layout = layout or PageLayout()
        if template.suffix != ".typ":
            if standard is not None:
                raise InvalidError(
                    f"HTML templates cannot produce PDF standard {standard}.",
                    fix="Choose a Typst template.",
                    field="options.standard",
                )
            if self._printer is None:
                raise InvalidError(
                    f"The template {template.stem} needs a browser pool.",
                    fix="Create the renderer with `browsers`.",
                    field="templateSlug",
                )
            inputs = await self._encode_template_inputs(content, metadata, layout)
            pdf = await self._printer.print_pdf(template, inputs, layout.margins)
            return await self._build_rendered_pdf(
                await self._run_in_thread(lambda: add_pdf_metadata(pdf, metadata))
            )
        options: dict[str, Any] = {"format": "pdf", "pdf_standards": standard or []}
        return await self._build_rendered_pdf(
            await self._render_typst_template(template, content, metadata, layout, options)
        )

    async def render_previews(
        self,
        template: Path,
        content: Mapping[str, Any],
        metadata: PdfMetadata,
        layout: PageLayout | None = None,
    ) -> list[bytes]:
        """Render each page as a PNG image. Only Typst templates have previews."""
        layout = layout or PageLayout()
        if template.suffix != ".typ":
            raise InvalidError(
                f"The template {template.stem} has no preview, because it is an HTML template.",
                fix="Choose a Typst template.",
                field="templateSlug",
            )
        options = {"format": "png", "ppi": PREVIEW_PIXELS_PER_INCH[layout.quality]}
        images = await self._render_typst_template(template, content, metadata, layout, options)
        return [images] if isinstance(images, bytes) else images

    async def _build_rendered_pdf(self, output: bytes | list[bytes]) -> RenderedPdf:
        pdf = cast("bytes", output)
        page_count = await self._run_in_thread(lambda: count_pdf_pages(pdf))
        return RenderedPdf(pdf, page_count)

    async def _render_typst_template(
        self,
        template: Path,
        content: Mapping[str, Any],
        metadata: PdfMetadata,
        layout: PageLayout,
        options: dict[str, Any],
    ) -> bytes | list[bytes]:
        inputs = await self._encode_template_inputs(content, metadata, layout)
        # Versions of Typst differ in the type they accept for time zones; all of them accept seconds.
        options = {**options, "timestamp": int(metadata.created_at.timestamp())}
        return await self._run_in_thread(partial(self._compile_template, template, inputs, options))

    async def _run_in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    async def _encode_template_inputs(
        self, content: Mapping[str, Any], metadata: PdfMetadata, layout: PageLayout
    ) -> dict[str, str]:
        encoded = msgspec.json.encode(content)
        if len(encoded) > MAX_TEMPLATE_CONTENT_BYTES:
            raise InvalidError(
                f"The document has {len(encoded):,} bytes of content; "
                f"the maximum is {MAX_TEMPLATE_CONTENT_BYTES:,}.",
                fix="Split the document.",
                field="data",
            )
        text = encoded.decode()
        template_layout = await self._run_in_thread(partial(self._build_layout_input, text, metadata, layout))
        return {"content": text, "layout": msgspec.json.encode(template_layout).decode()}

    def _build_layout_input(self, content: str, metadata: PdfMetadata, layout: PageLayout) -> dict[str, Any]:
        # The title and the author are metadata. A title in a script without a font must not stop a document.
        text = "".join(_collect_strings(msgspec.json.decode(content)))
        language = (metadata.language or guess_language(text)).lower()
        coverage = self.fonts.compute_font_coverage(text, language)
        if coverage.missing:
            raise _build_missing_font_error(coverage.missing)
        width, height = PAGE_SIZE_INCHES[layout.page_size]
        filter_installed_families = self.fonts.filter_installed_families
        fallback = [*coverage.families, *filter_installed_families(("DejaVu Sans Mono",))]
        return {
            **msgspec.to_builtins(layout),
            "width": width,
            "height": height,
            "title": metadata.title,
            "author": metadata.author,
            "description": metadata.subject,
            "keywords": list(metadata.keywords),
            "language": language.split("-")[0],
            "right_to_left": language.split("-")[0] in RIGHT_TO_LEFT_LANGUAGES,
            "fonts": {
                "sans": filter_installed_families(SANS_FONT_FAMILIES),
                "serif": filter_installed_families(SERIF_FONT_FAMILIES),
                "display": filter_installed_families(DISPLAY_FONT_FAMILIES),
                "fallback": fallback,
            },
        }

    def _compile_template(
        self, template: Path, inputs: dict[str, str], options: dict[str, Any]
    ) -> bytes | list[bytes]:
        try:
            output = self._get_typst_compiler(template).compile(sys_inputs=inputs, **options)
        except typst.TypstError as error:
            # The error may quote the document, so users do not see it. It stays as the cause, for logs.
            raise InvalidError(
                f"The template {template.stem} cannot render this document.",
                fix="Check the template with a sample document.",
                field="templateSlug",
            ) from error
        return cast("bytes | list[bytes]", output)

    def _get_typst_compiler(self, template: Path) -> typst.Compiler:
        compilers: dict[Path, typst.Compiler] = self._thread_state.__dict__.setdefault("compilers", {})
        if template not in compilers:
            compilers[template] = typst.Compiler(
                str(template),
                root=str(template.parent),
                font_paths=self.fonts.typst_fonts,
                package_path=str(TYPST_PACKAGE_FOLDER),
                package_cache_path=str(TYPST_PACKAGE_FOLDER),
            )
        return compilers[template]


def _collect_strings(value: object) -> Sequence[str]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, dict):
        values = cast("dict[str, object]", value).values()
        return [text for inner in values for text in _collect_strings(inner)]
    if isinstance(value, list):
        return [text for inner in cast("list[object]", value) for text in _collect_strings(inner)]
    return ()


def _build_missing_font_error(missing: Mapping[str, str]) -> InvalidError:
    scripts = " and ".join(f"{script} ({letters[:5]})" for script, letters in missing.items())
    return InvalidError(
        f"No installed font has the characters of {scripts}.",
        fix="pip install 'holdfast[fonts]', or install the Noto fonts (Debian: fonts-noto, fonts-noto-cjk).",
        field="data",
    )
