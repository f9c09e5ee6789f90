"""The web application: it stores a member and submits a job in one transaction.

uvicorn web:app --port 8000
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field
from tasks import client, welcome_member

from holdfast.errors import NotFoundError

SCHEMA = (Path(__file__).parent / "schema.sql").read_text()


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    async with client:
        async with client.connection() as connection:
            await connection.execute(SCHEMA)
        yield


app = FastAPI(title="Members", lifespan=lifespan)


class Signup(BaseModel):
    email: str = Field(max_length=200, pattern=r"^[^@\s]+@[^@\s]+$")


@app.post("/members", status_code=202)
async def sign_up(body: Signup) -> dict[str, Any]:
    async with client.transaction() as connection:
        query = "insert into members (email) values ($1) on conflict (email) do nothing returning id"
        member = await connection.fetchval(query, body.email)
        if member is None:
            raise HTTPException(409, "This address is a member already.")
        # Part of the transaction: the job exists exactly if the member does.
        job = await client.submit(welcome_member(member), on=connection, key=f"welcome:{member}")
    return {"member": member, "job": str(job.id), "status": f"/jobs/{job.id}"}


@app.get("/jobs/{job_id}")
async def get_job(job_id: UUID) -> dict[str, Any]:
    try:
        job = await client.get(job_id)
    except NotFoundError:
        raise HTTPException(404) from None
    return {"status": job.status, "percent": job.progress.percent, "output": job.output}
