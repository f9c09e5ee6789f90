"""Read a stored file in code without an event loop."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

from holdfast.client.blocking.loop_thread import LoopThread
from holdfast.definitions.context_types import FileReader


class BlockingFileReader:
    """A stored file that is open for reading: in chunks with `for`, or at once with `read()`."""

    def __init__(self, reader: FileReader, thread: LoopThread) -> None:
        self._reader = reader
        self._thread = thread

    def __iter__(self) -> Iterator[bytes]:
        return self._thread.iterate(aiter(self._reader))

    def read(self) -> bytes:
        """Return the rest of the file's content."""
        return self._thread.run(self._reader.read())


@contextmanager
def open_blocking_reader(
    manager: AbstractAsyncContextManager[FileReader], thread: LoopThread
) -> Generator[BlockingFileReader]:
    """Open a file in the background thread for the time of a block."""
    with thread.enter(manager) as reader:
        yield BlockingFileReader(reader, thread)
