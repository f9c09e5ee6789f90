"""HTML templates to PDF by a Chromium of the machine: the whole page, no scripts, no network."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import InvalidError, RefusedError

if TYPE_CHECKING:
    from holdfast.systems.printing import Margins

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 60.0
# The page may style itself and show inline images; everything else, scripts first of all, is shut off.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:"


class Chromium:
    def __init__(self, path: str | None = None) -> None:
        self._path = path

    async def pdf(self, template: Path, inputs: dict[str, str], margins: Margins) -> bytes:
        html = await asyncio.to_thread(fill, template, inputs, margins)
        with tempfile.TemporaryDirectory(prefix="holdfast-print-", ignore_cleanup_errors=True) as folder:
            place = Path(folder)
            page, made = place / "page.html", place / "page.pdf"
            await asyncio.to_thread(page.write_text, html, encoding="utf-8")
            await self._print(page, made)
            try:
                return await asyncio.to_thread(made.read_bytes)
            except FileNotFoundError:
                raise RuntimeError("the browser printed nothing") from None

    def _found(self) -> str:
        found = self._path or next((name for name in NAMES if shutil.which(name)), None)
        if found is None:
            raise RefusedError("HTML templates need Chromium.", fix="Install it, or choose a Typst template.")
        return found

    async def _print(self, page: Path, made: Path) -> None:
        as_root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        process = await asyncio.create_subprocess_exec(
            self._found(),
            "--headless",
            *as_root,
            "--disable-gpu",
            "--disable-extensions",
            "--disable-background-networking",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={page.parent / 'profile'}",
            "--no-pdf-header-footer",
            f"--print-to-pdf={made}",
            page.as_uri(),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(SECONDS):
                await process.wait()
        finally:
            # The browser has children of its own; none of them may outlive an export that was cancelled.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def fill(template: Path, inputs: dict[str, str], margins: Margins) -> str:
    """The template with the content in it. Autoescape is on: a field is text, whatever it says."""
    try:
        import jinja2  # noqa: PLC0415  (an extra, and only HTML templates need it)
        from jinja2 import sandbox  # noqa: PLC0415
    except ImportError:
        raise RefusedError("HTML templates need jinja2.", fix="Install holdfast[server].") from None
    environment = sandbox.SandboxedEnvironment(
        autoescape=True, loader=jinja2.FileSystemLoader(template.parent), undefined=jinja2.ChainableUndefined
    )
    layout: dict[str, Any] = msgspec.json.decode(inputs["layout"])
    content: dict[str, Any] = msgspec.json.decode(inputs["content"])
    try:
        return environment.get_template(template.name).render(
            content=content, layout=layout, policy=POLICY, margins=margins
        )
    except jinja2.TemplateError as problem:
        raise InvalidError(
            f"The template {template.stem} cannot print this document.", field="templateSlug"
        ) from problem
