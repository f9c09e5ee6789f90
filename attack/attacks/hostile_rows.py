"""Store hostile texts as the rows of systems that show what others say about themselves: pages, videos."""

from __future__ import annotations

import json
from urllib.parse import quote

from attack.identities import User
from attack.target import Product
from holdfast.systems.tables import quote_schema_name


async def store_hostile_rows(product: Product, mallory: User, texts: list[str]) -> None:
    schema = quote_schema_name(product.settings.systems_schema)
    storers = {
        "bookmarks": store_hostile_bookmarks,
        "clips": store_hostile_clips,
        "media": store_hostile_shares,
    }
    for system, store in storers.items():
        if system in product.systems:
            await store(product, mallory, texts, schema)


async def store_hostile_bookmarks(product: Product, mallory: User, texts: list[str], schema: str) -> None:
    """Store texts as those of hostile web pages: a capture stores what a page says about itself."""
    for number, text in enumerate(texts):
        body = {"url": f"https://attack.invalid/{number}?{quote(text)}"}
        added = await product.http.post("/api/v1/bookmarks/add/data", json=body, headers=mallory.headers)
        await product.connection.execute(
            f"update {schema}.bookmarks set title = $2, description = $2, caption = $2, ocr = $2,"
            " page_text = $2, screenshot_error = $2,"
            " url = case when id % 2 = 0 then 'javascript:window.hacked=1' else url end where id = $1",
            added.json()["id"],
            text,
        )


async def store_hostile_clips(product: Product, mallory: User, texts: list[str], schema: str) -> None:
    """Store texts as those of a scraped video and of the language model that summarised it."""
    for number, text in enumerate(texts):
        await product.connection.execute(
            f"insert into {schema}.clipnest_videos (user_id, video_url, title, author, thumbnail, transcript,"
            " summary, tags, processing_status, processing_error)"
            " values ($1, $2, $3, $3, 'javascript:window.hacked=1', $3, $3, array[$3], 'done', $3)",
            mallory.id,
            f"https://attack.invalid/{number}?{quote(text)}",
            text,
        )


async def store_hostile_shares(product: Product, mallory: User, texts: list[str], schema: str) -> None:
    """Store texts as those that a video site says about a film."""
    for number, text in enumerate(texts):
        await product.connection.execute(
            f"insert into {schema}.shares (user_id, url, platform_data, download_status, download_error)"
            " values ($1, $2, $3::text::jsonb, 'failed', $4)",
            mallory.id,
            f"https://attack.invalid/{number}?{quote(text)}",
            json.dumps(dict.fromkeys(("title", "author", "platform", "notice"), text)),
            text,
        )
