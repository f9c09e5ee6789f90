"""A web site on loopback whose pages a test defines, and the egress policy that may reach it."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from web_servers import RecordedRequest, Responder, WebServer, respond, run_web_server

from holdfast.egress import EgressAllowlist, EgressPolicy


@dataclass
class PageSite:
    """Pages by path. Unknown paths answer with 404. `server` records the requests."""

    pages: dict[str, Responder] = field(default_factory=dict[str, Responder])
    server: WebServer = field(init=False)

    async def answer(self, request: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        page = self.pages.get(request.target.partition("?")[0])
        await (page or respond(b"<h1>Not found</h1>", status=404, Content_Type="text/html"))(request, writer)

    @property
    def policy(self) -> EgressPolicy:
        return EgressPolicy(allowlist=EgressAllowlist.parse(self.server.authority))

    def add(
        self, path: str, body: str | bytes, content_type: str = "text/html; charset=utf-8", **headers: str
    ) -> str:
        """Add a page and return its URL."""
        content = body.encode() if isinstance(body, str) else body
        fields: dict[str, Any] = {"Content_Type": content_type, **headers}
        self.pages[path] = respond(content, **fields)
        return self.server.url + path

    def add_responder(self, path: str, responder: Responder) -> str:
        """Add a page that a function sends, and return its URL."""
        self.pages[path] = responder
        return self.server.url + path

    @property
    def requested_paths(self) -> list[str]:
        return [request.target for request in self.server.requests]


@asynccontextmanager
async def run_page_site() -> AsyncGenerator[PageSite]:
    site = PageSite()
    async with run_web_server(site.answer) as site.server:
        yield site


def make_image(
    width: int = 640, height: int = 360, color: Any = (20, 60, 200), file_format: str = "PNG", text: str = ""
) -> bytes:
    """Return an image of one colour, with a large line of text on it."""
    from PIL import Image, ImageDraw, ImageFont  # noqa: PLC0415

    image = Image.new("RGB", (width, height), color)
    if text:
        ImageDraw.Draw(image).text((40, height // 3), text, fill="white", font=ImageFont.load_default(72))
    output = io.BytesIO()
    image.save(output, file_format)
    return output.getvalue()


def open_picture(content: bytes) -> Any:
    from PIL import Image  # noqa: PLC0415

    return Image.open(io.BytesIO(content))
