"""The systems in the demonstration: résumés as PDF, and a report of sixteen documents with recordings.

A worker serves this module; `begin` submits the work of one made-up user, and `keep` puts what came out of it
beside the other results.
"""

from __future__ import annotations

import importlib.util
import secrets
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import jwt

from holdfast.client import Client, JobHandle
from holdfast.settings import Settings
from holdfast.systems import exports, reports
from holdfast.systems.exports import records
from holdfast.systems.exports.documents import samples
from holdfast.systems.exports.options import ExportOptions
from holdfast.systems.exports.work import export_cleanup, export_pdf
from holdfast.systems.reports.work import (
    audio_generation,
    calculating,
    finalizing,
    nuclear_v2,
    pdf_generation,
    text_generation,
)
from holdfast.systems.workshop import workshop

__all__ = [
    "audio_generation",
    "calculating",
    "export_cleanup",
    "export_pdf",
    "finalizing",
    "lifespan",
    "pdf_generation",
    "text_generation",
]

USER = "0d0d0d0d-0000-4000-8000-00000000d3a0"
TEMPLATES = {"amara": "minimal", "jonas": "classic", "lucia": "modern"}
PEOPLE = {
    "person1": {"name": "Ada", "birthDate": "1815-12-10", "birthPlace": "London"},
    "person2": {"name": "Charles", "birthDate": "1791-12-26", "birthPlace": "London"},
    "systems": ["western", "vedic", "human_design"],
}
lifespan = workshop


def speaks() -> bool:
    return all(importlib.util.find_spec(name) for name in ("espeakng_loader", "lameenc"))


def door(settings: Settings) -> tuple[dict[str, str], str]:
    """What the API needs so that the made-up user can come in, and the token with which they do."""
    secret = settings.jwt_secret.reveal() if settings.jwt_secret else secrets.token_urlsafe(48)
    issuer = settings.jwt_issuer or "holdfast demo"
    claims = {
        "sub": USER,
        "iss": issuer,
        "aud": settings.jwt_audience,
        "role": "authenticated",
        "exp": int(time.time()) + 86_400,
    }
    needed = {"HOLDFAST_JWT_SECRET": secret, "HOLDFAST_JWT_ISSUER": issuer}
    return needed, jwt.encode(claims, secret, "HS256")


async def begin(client: Client) -> dict[str, JobHandle[Any]]:
    """Install the systems and submit their work."""
    schema = client.settings.systems_schema
    database = await client.open()
    handles: dict[str, JobHandle[Any]] = {}
    async with database.connection() as connection:
        await exports.install(connection, schema)
        await reports.install(connection, schema)
        known = {row["title"]: row["id"] for row in await records.list_documents(connection, schema, USER)}
        for name, sample in samples():
            document = known.get(sample.title) or await records.add_document(
                connection, schema, USER, sample.title, sample.data
            )
            if name in TEMPLATES:
                handles[f"{name}.pdf"] = await _export(client, connection, document, TEMPLATES[name])
    if speaks():
        handles["report"] = await client.start(nuclear_v2, PEOPLE, owner=USER)
    return handles


async def _export(client: Client, connection: Any, document: UUID, template: str) -> JobHandle[Any]:
    options = ExportOptions(page_size="A4")
    async with connection.transaction():
        call = export_pdf(document, template, options)
        handle = await client.submit(call, owner=USER, limit_key=USER, on=connection)
        request = (document, template, options)
        await records.write_request(connection, client.settings.systems_schema, handle.id, USER, request)
    return handle


async def keep(client: Client, handles: dict[str, JobHandle[Any]], results: Path) -> list[Path]:
    """Copies of the files that were made: the PDFs, and of the report the book and its first recording."""
    kept: list[Path] = []
    for name, handle in handles.items():
        if name.endswith(".pdf"):
            wanted = {"": name}
        elif name == "report":
            wanted = {"full_nuclear.pdf": "report.pdf", "chapter1.mp3": "report-chapter1.mp3"}
        else:
            continue
        for file in await client.files.list(job=handle.id):
            place = wanted.get("" if "" in wanted else file.name)
            if place is not None:
                async with client.files.open(file) as reading:
                    (results / place).write_bytes(await reading.read())
                kept.append(results / place)
    return kept
