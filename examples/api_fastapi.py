"""Mount the HTTP API in a FastAPI application, under /tasks."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from api_reports import app as jobs_api


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    async with jobs_api.router.lifespan_context(jobs_api):  # closes streams and connections
        yield


app = FastAPI(lifespan=lifespan)
app.mount("/tasks", jobs_api)


@app.get("/")
async def home() -> str:
    return "home"
