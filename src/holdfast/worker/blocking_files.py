"""Open a stored file in a plain function: the worker's event loop reads it, the thread waits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeVar

from holdfast.definitions.context_types import BlockingArtifactReader, FileReader

T = TypeVar("T")
# Runs asynchronous work on the worker's event loop and waits for it.
WaitInThread = Callable[[Callable[[], Awaitable[Any]]], Any]


@contextmanager
def open_file_in_thread(
    opening: AbstractAsyncContextManager[FileReader], wait: WaitInThread
) -> Generator[BlockingArtifactReader]:
    reader: FileReader = wait(opening.__aenter__)
    try:
        yield ThreadFileReader(reader, wait)
    finally:
        wait(lambda: opening.__aexit__(None, None, None))


class ThreadFileReader:
    """Reads an open file chunk by chunk from a thread."""

    def __init__(self, reader: FileReader, wait: WaitInThread) -> None:
        self._reader = reader
        self._wait = wait

    def __iter__(self) -> Iterator[bytes]:
        chunks = aiter(self._reader)
        while (chunk := self._wait(lambda: _read_next_chunk(chunks))) is not None:
            yield chunk

    def read(self) -> bytes:
        content: bytes = self._wait(self._reader.read)
        return content


async def _read_next_chunk(chunks: AsyncIterator[bytes]) -> bytes | None:
    return await anext(chunks, None)
