"""The systems of the demo: export three résumés as PDF, and create a report of sixteen documents with audio.

A worker runs the tasks of this module. `submit_demo_jobs` submits jobs for one invented user, and
`copy_result_files` copies their files beside the other results of the demo.
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
from holdfast.systems.exports import queries
from holdfast.systems.exports.export_requests import ExportOptions
from holdfast.systems.exports.export_tasks import export_cleanup, export_pdf
from holdfast.systems.exports.resumes import load_sample_documents
from holdfast.systems.reports.report_tasks import (
    audio_generation,
    calculating,
    finalizing,
    nuclear_v2,
    pdf_generation,
    text_generation,
)
from holdfast.systems.worker_state import systems_lifespan

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

DEMO_USER_ID = "0d0d0d0d-0000-4000-8000-00000000d3a0"
TEMPLATES_BY_CV_NAME = {"amara": "minimal", "jonas": "classic", "lucia": "modern"}
REPORT_INPUT = {
    "person1": {"name": "Ada", "birthDate": "1815-12-10", "birthPlace": "London"},
    "person2": {"name": "Charles", "birthDate": "1791-12-26", "birthPlace": "London"},
    "systems": ["western", "vedic", "human_design"],
}
REPORT_COPY_NAMES = {"full_nuclear.pdf": "report.pdf", "chapter1.mp3": "report-chapter1.mp3"}
lifespan = systems_lifespan


def can_create_audio() -> bool:
    """Return whether the packages of the extra `speech` are installed."""
    return all(importlib.util.find_spec(name) for name in ("espeakng_loader", "lameenc"))


def create_demo_credentials(settings: Settings) -> tuple[dict[str, str], str]:
    """Return environment variables with which the API accepts the demo user's token, and that token."""
    secret = settings.jwt_secret.reveal() if settings.jwt_secret else secrets.token_urlsafe(48)
    issuer = settings.jwt_issuer or "holdfast demo"
    claims = {
        "sub": DEMO_USER_ID,
        "iss": issuer,
        "aud": settings.jwt_audience,
        "role": "authenticated",
        "exp": int(time.time()) + 86_400,
    }
    environment = {"HOLDFAST_JWT_SECRET": secret, "HOLDFAST_JWT_ISSUER": issuer}
    return environment, jwt.encode(claims, secret, "HS256")


async def submit_demo_jobs(client: Client) -> dict[str, JobHandle[Any]]:
    """Install the tables of the export and report systems and submit their sample jobs."""
    schema = client.settings.systems_schema
    handles: dict[str, JobHandle[Any]] = {}
    async with client.connection() as connection:
        await exports.install(connection, schema)
        await reports.install(connection, schema)
        known = {
            row["title"]: row["id"] for row in await queries.list_documents(connection, schema, DEMO_USER_ID)
        }
        for name, sample in load_sample_documents():
            document = known.get(sample.title) or await queries.add_document(
                connection, schema, DEMO_USER_ID, sample.title, sample.data
            )
            if name in TEMPLATES_BY_CV_NAME:
                handles[f"{name}.pdf"] = await _submit_export(
                    client, connection, document, TEMPLATES_BY_CV_NAME[name]
                )
    if can_create_audio():
        handles["report"] = await client.start_job(nuclear_v2, REPORT_INPUT, owner=DEMO_USER_ID)
    return handles


async def _submit_export(client: Client, connection: Any, document: UUID, template: str) -> JobHandle[Any]:
    options = ExportOptions(page_size="A4")
    async with connection.transaction():
        call = export_pdf(document, template, options)
        handle = await client.submit(call, owner=DEMO_USER_ID, limit_key=DEMO_USER_ID, on=connection)
        schema = client.settings.systems_schema
        await queries.add_export_request(
            connection, schema, handle.id, DEMO_USER_ID, document, template, options
        )
    return handle


async def copy_result_files(client: Client, handles: dict[str, JobHandle[Any]], folder: Path) -> list[Path]:
    """Copy the PDF and audio files that the demo jobs saved to a folder, and return their paths."""
    copies: list[Path] = []
    for job_name, handle in handles.items():
        if not job_name.endswith(".pdf") and job_name != "report":
            continue
        for file in await client.files.list(job=handle.id):
            copy_name = job_name if job_name != "report" else REPORT_COPY_NAMES.get(file.name)
            if copy_name is not None:
                async with client.files.open(file) as reader:
                    (folder / copy_name).write_bytes(await reader.read())
                copies.append(folder / copy_name)
    return copies
