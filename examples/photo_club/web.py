"""The web application. It mounts the API of Holdfast at /tasks, which serves the files.

HOLDFAST_PUBLIC_URL=/tasks uvicorn photo_club.web:app
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from holdfast.errors import NotFoundError
from holdfast.server import create_app
from photo_club.tasks import MAILS_PER_DOMAIN, album, client, welcome

SCHEMA = (Path(__file__).parent / "schema.sql").read_text()


async def prepare() -> None:
    """Create the tables, and limit how many mails to one provider are sent at once."""
    async with client.connection() as connection:
        await connection.execute(SCHEMA)
    await client.limits.put(
        "mails per domain", type="send_newsletter", per_key=True, max_running=MAILS_PER_DOMAIN
    )


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    async with client:
        await prepare()
        yield


app = FastAPI(title="Photo club", lifespan=lifespan)


class Signup(BaseModel):
    email: str = Field(max_length=200, pattern=r"^[^@\s]+@[^@\s]+$")


class Photo(BaseModel):
    email: str
    title: str = Field(min_length=1, max_length=100)


@app.post("/members", status_code=201)
async def sign_up(body: Signup) -> dict[str, str]:
    async with client.transaction() as connection:
        query = "insert into members (email) values ($1) on conflict do nothing returning email"
        if await connection.fetchval(query, body.email) is None:
            raise HTTPException(409, "This address is a member already.")
        job = await client.submit(welcome(body.email), on=connection)  # exists exactly if the member does
    return {"job": str(job.id)}


@app.post("/photos", status_code=201)
async def add_photo(body: Photo) -> dict[str, int]:
    async with client.connection() as connection:
        query = (
            "insert into photos (email, title) select email, $2 from members where email = $1 returning id"
        )
        number = await connection.fetchval(query, body.email, body.title)
    if number is None:
        raise HTTPException(404, "There is no such member.")
    return {"photo": number}


@app.post("/members/{email}/albums", status_code=202)
async def order_album(email: str) -> dict[str, str]:
    async with client.connection() as connection:
        rows = await connection.fetch("select title from photos where email = $1 order by id", email)
    job = await client.submit(album([row["title"] for row in rows]), owner=email, unique=f"album:{email}")
    return {"job": str(job.id), "events": f"/albums/{job.id}/events", "link": f"/albums/{job.id}/link"}


@app.get("/albums/{job_id}/events")
async def follow_album(job_id: UUID) -> StreamingResponse:
    """Stream the progress as server-sent events, until the album is finished."""

    async def frames() -> AsyncIterator[str]:
        async for job in client.watch(job_id):
            state = {"status": job.status, "percent": job.progress.percent, "message": job.progress.message}
            yield f"data: {json.dumps(state)}\n\n"

    try:
        await client.get(job_id)
    except NotFoundError:
        raise HTTPException(404) from None
    return StreamingResponse(frames(), media_type="text/event-stream")


@app.get("/albums/{job_id}/link")
async def get_album_link(job_id: UUID) -> dict[str, str]:
    """Return a link that works for ten minutes, for everybody who has it."""
    files = await client.files.list(job=job_id)
    if not files:
        raise HTTPException(404, "The album is not finished.")
    return {"url": await client.files.create_download_link(files[0], 600)}


app.mount("/tasks", create_app())
