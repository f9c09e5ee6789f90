"""Print HTML templates as PDF with an installed Chromium, without scripts and network access."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import InvalidError, RefusedError
from holdfast.systems.printing.page_layout import PageMargins

CHROMIUM_COMMANDS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PDF_PRINT_TIMEOUT_S = 60.0
# The page may use inline styles, images and fonts. Scripts and everything else are blocked.
TEMPLATE_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:"


class ChromiumPrinter:
    """Printer of HTML templates as PDF, with one Chromium process for each document."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path

    async def print_pdf(self, template: Path, inputs: dict[str, str], margins: PageMargins) -> bytes:
        html = await asyncio.to_thread(fill_html_template, template, inputs, margins)
        with tempfile.TemporaryDirectory(prefix="holdfast-print-", ignore_cleanup_errors=True) as folder:
            html_file, pdf_file = Path(folder) / "page.html", Path(folder) / "page.pdf"
            await asyncio.to_thread(html_file.write_text, html, encoding="utf-8")
            await self._run_chromium(html_file, pdf_file)
            try:
                return await asyncio.to_thread(pdf_file.read_bytes)
            except FileNotFoundError:
                raise RuntimeError("Chromium exited without writing a PDF") from None

    def _find_chromium_path(self) -> str:
        browser = self._path or next((name for name in CHROMIUM_COMMANDS if shutil.which(name)), None)
        if browser is None:
            raise RefusedError(
                "HTML templates need Chromium, which is not installed.",
                fix="Install Chromium, or choose a Typst template.",
            )
        return browser

    async def _run_chromium(self, html_file: Path, pdf_file: Path) -> None:
        is_root = hasattr(os, "geteuid") and os.geteuid() == 0
        process = await asyncio.create_subprocess_exec(
            self._find_chromium_path(),
            "--headless",
            *(["--no-sandbox"] if is_root else []),
            "--disable-gpu",
            "--disable-extensions",
            "--disable-background-networking",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={html_file.parent / 'profile'}",
            "--no-pdf-header-footer",
            f"--print-to-pdf={pdf_file}",
            html_file.as_uri(),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(PDF_PRINT_TIMEOUT_S):
                await process.wait()
        finally:
            # The browser starts child processes. None of them may outlive a cancelled export.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def fill_html_template(template: Path, inputs: dict[str, str], margins: PageMargins) -> str:
    """Fill an HTML template with content. Autoescape is on, so markup in a field is printed as text."""
    try:
        import jinja2  # noqa: PLC0415  (an optional dependency that only HTML templates need)
        from jinja2 import sandbox  # noqa: PLC0415
    except ImportError:
        raise RefusedError(
            "HTML templates need the package 'jinja2', which is not installed.",
            fix="pip install 'holdfast[server]'",
        ) from None
    environment = sandbox.SandboxedEnvironment(
        autoescape=True, loader=jinja2.FileSystemLoader(template.parent), undefined=jinja2.ChainableUndefined
    )
    layout: dict[str, Any] = msgspec.json.decode(inputs["layout"])
    content: dict[str, Any] = msgspec.json.decode(inputs["content"])
    try:
        return environment.get_template(template.name).render(
            content=content, layout=layout, policy=TEMPLATE_SECURITY_POLICY, margins=margins
        )
    except jinja2.TemplateError as error:
        raise InvalidError(
            f"The template {template.stem} cannot render this document.",
            fix="Check the template with a sample document.",
            field="templateSlug",
        ) from error
