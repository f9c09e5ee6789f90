"""The baseline of bench/api.py: an ASGI application that stores the body of a request with one INSERT.

Run by uvicorn with its defaults. It checks no token, no rights and no fields.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import asyncpg
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


@asynccontextmanager
async def open_pool(app: Starlette) -> AsyncGenerator[None]:
    async with asyncpg.create_pool(os.environ["HOLDFAST_DATABASE_URL"], min_size=1, max_size=10) as pool:
        await pool.execute("create table if not exists baseline_rows (id bigserial primary key, body jsonb)")
        app.state.pool = pool
        yield


async def insert_row(request: Request) -> Response:
    body = json.dumps(await request.json())
    row_id = await request.app.state.pool.fetchval(
        "insert into baseline_rows (body) values ($1) returning id", body
    )
    return JSONResponse({"id": row_id}, 202)


app = Starlette(routes=[Route("/rows", insert_row, methods=["POST"])], lifespan=open_pool)
