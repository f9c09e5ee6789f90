"""Contacts: a user uploads a CSV file, each row is checked, and a report says which rows were refused."""

import csv
import io
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast import Client, Ctx, Reject, lifespan, task
from holdfast.server import api_operation, get_client, json_response, read_body, transaction_as_caller
from holdfast.systems import create_page_routes, install_tables, qualify_tables, require_owner_id

FOLDER = Path(__file__).parent
SUMMARY = "Import contacts from a CSV file."
EMAIL = re.compile(r"[^@\s\0]+@[^@\s\0]+\.[^@\s\0]+")
ADD_CONTACT = """insert into {}.contacts (user_id, email, name) values ($1, $2, $3)
on conflict (user_id, email) do update set name = excluded.name"""


@lifespan
async def open_client() -> AsyncIterator[Client]:
    async with Client() as client:
        yield client


def check_row(row: dict[str, str | None]) -> str | None:
    """Return what is wrong with a row, or None."""
    if not (row.get("name") or "").strip(" \0"):
        return "name is missing"
    return None if EMAIL.fullmatch((row.get("email") or "").strip()) else "email is not an address"


@task(queue="contacts", retries=3, timeout=timedelta(minutes=10))
async def import_contacts(ctx: Ctx[Client], file_id: UUID) -> dict[str, int]:
    try:
        text = (await ctx.state.files.read(file_id)).decode("utf-8-sig")
        rows = list(csv.DictReader(io.StringIO(text)))
    except (UnicodeDecodeError, csv.Error) as error:
        raise Reject(
            f"The file is not a CSV file in UTF-8: {error}."
        ) from None  # the user reads this; no retry
    if not rows or not {"name", "email"} <= rows[0].keys():
        raise Reject("The file needs a first line with the columns name and email, and rows below it.")
    accepted: dict[str, str] = {}
    refused: list[list[Any]] = []
    async for number, row in ctx.track(list(enumerate(rows, 1)), phase="checking"):
        problem = check_row(row)
        if problem:
            refused.append([number, problem, row.get("name"), row.get("email")])
        else:
            accepted[str(row["email"]).strip().lower()] = str(row["name"]).strip(" \0")
    report = io.StringIO()
    csv.writer(report).writerows([["row", "problem", "name", "email"], *refused])
    await ctx.save("report.csv", report.getvalue().encode(), "text/csv")
    counts = {"imported": len(accepted), "refused": len(refused)}
    query = qualify_tables(ADD_CONTACT, ctx.state.settings.systems_schema)
    async with ctx.state.transaction() as connection:
        await connection.executemany(query, [(ctx.owner, *contact) for contact in accepted.items()])
        await ctx.complete(connection, counts)  # the rows exist exactly if the job has succeeded
    return counts


@api_operation("Import a CSV file of contacts", tag="contacts", scope="jobs", status=202)
async def start_import(request: Request) -> Response:
    owner, client = await require_owner_id(request), get_client(request)
    file = await client.files.put("contacts.csv", await read_body(request), "text/csv", owner=owner)
    job = await client.submit(import_contacts(file.id), owner=owner)
    return json_response({"jobId": job.id}, 202)


@api_operation("List your contacts", tag="contacts", scope="jobs")
async def list_contacts(request: Request) -> Response:
    owner, schema = await require_owner_id(request), get_client(request).settings.systems_schema
    query = "select email, name from {}.contacts where user_id = $1 order by name, email limit 1000"
    async with transaction_as_caller(request) as connection:
        rows = await connection.fetch(qualify_tables(query, schema), owner)
    return json_response({"contacts": [dict(row) for row in rows]})


def mount() -> dict[str, Any]:
    """Return the arguments of `create_app`: routes and tasks."""
    titles = {import_contacts.name: "Import of contacts"}
    routes = [
        Route("/api/v1/contacts/import", start_import, methods=["POST"]),
        Route("/api/v1/contacts", list_contacts, methods=["GET"]),
        *create_page_routes("/contacts", FOLDER / "page", "Contacts", summary=SUMMARY, job_titles=titles),
    ]
    return {"routes": routes, "tasks": [import_contacts]}


async def install_if_needed(connection: Any, schema: str = "public") -> None:
    """Create the tables, unless this version of them exists. `holdfast api --system contacts` calls it."""
    await install_tables(connection, FOLDER / "tables.sql", schema, "table contacts")
