"""Files: one task draws pictures, another packs them, and a link lets anybody fetch the result.

holdfast worker examples/drawings.py &
python examples/drawings.py
"""

import asyncio
import gzip
import struct
import zlib
from collections.abc import AsyncIterator
from datetime import timedelta

from holdfast import Artifact, Client, Ctx, Graph, task

client = Client()


def png(width: int, height: int) -> bytes:
    """A grey picture, so that this example needs no library."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = b"".join(b"\0" + bytes(column * 255 // width for column in range(width)) for _ in range(height))
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@task(queue="pictures")
async def draw(ctx: Ctx, title: str, width: int) -> Artifact:
    return await ctx.save(f"{title}.png", png(width, width // 2), kind="picture", ttl=timedelta(days=7))


@task(queue="pictures")
async def pack(ctx: Ctx, picture: Artifact) -> Artifact:
    async def packed() -> AsyncIterator[bytes]:
        async with ctx.open(picture) as content:
            async for piece in content:  # never more than one piece in memory
                yield gzip.compress(piece)

    return await ctx.save(f"{picture.name}.gz", packed(), "application/gzip")


async def main() -> None:
    graph = Graph("pictures")
    drawn = graph.add(draw("Übersicht", 640))
    graph.add(pack(drawn.result))
    async with client:
        job = await client.submit(graph, owner="ann")
        await job.result(within=timedelta(minutes=1))
        for file in await client.files.list(job=job.id):
            print(file.name, file.content_type, file.size, file.meta)
            print(await client.files.sign(file, timedelta(minutes=10)))
            async with client.files.open(file) as content:
                print(len(await content.read()), "bytes, checked against their hash")


async def upload() -> None:
    async with client:
        saved = await client.files.put("notes.txt", b"hello", owner="ann", ttl=timedelta(hours=1))
        print(saved.id, saved.key)
        print(await client.files.usage("ann"))
        await client.files.delete(saved.id)


if __name__ == "__main__":
    asyncio.run(main())
    asyncio.run(upload())
