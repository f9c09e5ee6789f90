"""The API inside a FastAPI application, under /tasks."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from api_reports import app as work


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    async with work.router.lifespan_context(work):  # closes streams and connections
        yield


app = FastAPI(lifespan=lifespan)
app.mount("/tasks", work)


@app.get("/")
async def home() -> str:
    return "home"
