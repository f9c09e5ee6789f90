"""Files: one task draws a picture, another compresses it, and a signed link lets anybody download it.

holdfast worker examples/files.py &
python examples/files.py
"""

import asyncio
import gzip
import struct
import zlib
from collections.abc import AsyncIterator
from datetime import timedelta

from holdfast import Artifact, Client, Ctx, Graph, task

client = Client()


def encode_png(width: int, height: int) -> bytes:
    """Encode a grey picture as PNG, without a library."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    rows = b"".join(b"\0" + bytes(column * 255 // width for column in range(width)) for _ in range(height))
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@task(queue="pictures")
async def draw(ctx: Ctx, title: str, width: int) -> Artifact:
    return await ctx.save(
        f"{title}.png", encode_png(width, width // 2), kind="picture", ttl=timedelta(days=7)
    )


@task(queue="pictures")
async def compress(ctx: Ctx, picture: Artifact) -> Artifact:
    async def compressed_chunks() -> AsyncIterator[bytes]:
        async with ctx.open(picture) as content:
            async for chunk in content:  # only one chunk is in memory at a time
                yield gzip.compress(chunk)

    return await ctx.save(f"{picture.name}.gz", compressed_chunks(), "application/gzip")


async def main() -> None:
    graph = Graph("pictures")
    drawn = graph.add(draw("Übersicht", 640))
    graph.add(compress(drawn.result))
    async with client:
        job = await client.submit(graph, owner="ann")
        await job.result(within=timedelta(minutes=1))
        for file in await client.files.list(job=job.id):
            print(file.name, file.content_type, file.size, file.meta)
            print(await client.files.create_download_link(file, timedelta(minutes=10)))
            async with client.files.open(file) as content:
                print(len(await content.read()), "bytes, verified with their hash")


async def upload() -> None:
    async with client:
        saved = await client.files.put("notes.txt", b"hello", owner="ann", ttl=timedelta(hours=1))
        print(saved.id, saved.key)
        print(await client.files.usage("ann"))
        await client.files.delete(saved.id)


if __name__ == "__main__":
    asyncio.run(main())
    asyncio.run(upload())
