"""The web application: it submits jobs and returns their status and result.

uvicorn web:app --port 8000
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field
from tasks import count_words

from holdfast import Client
from holdfast.errors import NotFoundError

client = Client()  # uses DATABASE_URL, or the database in .holdfast; connects at first use


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    async with client:
        yield


app = FastAPI(title="Words", lifespan=lifespan)


class Text(BaseModel):
    text: str = Field(max_length=10_000)


@app.post("/texts", status_code=202)
async def submit(body: Text) -> dict[str, Any]:
    job = await client.submit(count_words(body.text))
    return {"job": str(job.id), "status": f"/texts/{job.id}"}


@app.get("/texts/{job_id}")
async def get_status(job_id: UUID) -> dict[str, Any]:
    try:
        job = await client.get(job_id)
    except NotFoundError:
        raise HTTPException(404) from None
    return {"status": job.status, "percent": job.progress.percent, "words": job.output}
