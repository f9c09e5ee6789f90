"""Submit a job in your own transaction: the job exists only if the transaction commits."""

from __future__ import annotations

import asyncio
import urllib.request
from datetime import timedelta
from typing import Any

from holdfast import Client, Ctx, task

client = Client()  # uses DATABASE_URL, else the embedded PostgreSQL; connects at first use


@task(queue="pages", retries=5, timeout=timedelta(minutes=1))
async def page_title(ctx: Ctx, url: str) -> str:
    ctx.progress(0, 2, phase="fetch", message=url)  # written at most a few times per second
    html = await asyncio.to_thread(fetch, url)
    ctx.progress(1, 2, phase="read")
    return html.partition("<title>")[2].partition("</title>")[0]


async def add_bookmark(connection: Any, url: str) -> str:  # your connection, your transaction
    await connection.execute("insert into bookmarks (url) values ($1)", url)
    job = await client.submit(page_title(url), on=connection, key=f"title:{url}")
    return str(job.id)  # exists only if you commit


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as response:
        body: bytes = response.read()
    return body.decode()
