"""A site with films, playlists and manifests on loopback, and a second server that must stay unreached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from web_servers import RecordedRequest, WebServer, respond, run_web_server

from holdfast.egress import EgressAllowlist, EgressPolicy


@dataclass
class MediaSite:
    """`pages` maps a path to a content type and a body, or to a complete response."""

    server: WebServer
    canary: WebServer
    pages: dict[str, tuple[str, bytes]] = field(default_factory=dict[str, tuple[str, bytes]])
    statuses: dict[str, tuple[int, dict[str, str]]] = field(
        default_factory=dict[str, tuple[int, dict[str, str]]]
    )

    @property
    def policy(self) -> EgressPolicy:
        """A policy that allows the site, but not the canary."""
        return EgressPolicy(allowlist=EgressAllowlist.parse(self.server.authority))

    def add(self, path: str, content_type: str, body: bytes | str) -> str:
        self.pages[path] = (content_type, body.encode() if isinstance(body, str) else body)
        return self.server.url + path

    def fail(self, path: str, status: int, **headers: str) -> str:
        self.statuses[path] = (status, headers)
        return self.server.url + path

    async def respond(self, request: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        path = urlsplit(request.target).path
        if path in self.statuses:
            status, headers = self.statuses[path]
            await respond(b"", status=status, close=True, **headers)(request, writer)
        elif path in self.pages:
            content_type, body = self.pages[path]
            await respond(body, Content_Type=content_type)(request, writer)
        else:
            await respond(b"", status=404)(request, writer)


@asynccontextmanager
async def run_media_site() -> AsyncGenerator[MediaSite]:
    async with run_web_server(respond(b"secret")) as server, run_web_server(respond(b"secret")) as canary:
        site = MediaSite(server, canary)
        server.responder = site.respond
        yield site
