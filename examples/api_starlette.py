"""Mount the HTTP API in a Starlette application, under /tasks."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from api_reports import app as jobs_api


async def home(_: Request) -> PlainTextResponse:
    return PlainTextResponse("home")


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncGenerator[None]:
    async with jobs_api.router.lifespan_context(jobs_api):  # closes streams and connections
        yield


app = Starlette(routes=[Route("/", home), Mount("/tasks", jobs_api)], lifespan=lifespan)
