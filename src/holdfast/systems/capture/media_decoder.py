"""Decode images and PDFs of strangers in child processes that have limits and no rights.

A file that crashes, blocks or fills the memory of its decoder ends that process and not the worker. The next
file gets a new process.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from typing import Any, Self, TypeVar

import msgspec

from holdfast.systems.capture.chromium_command import find_browser_user
from holdfast.systems.capture.decoder_operations import DecodedImage, RenderedPage
from holdfast.systems.capture.decoder_process import DecodeRequest, DecodeResponse
from holdfast.systems.capture.errors import CaptureError
from holdfast.systems.capture.libraries import load_library
from holdfast.systems.piped_process import PipedProcess, open_pipe_reader

T = TypeVar("T")

READY = b"ready\0\0\0"
START_TIMEOUT_S = 60.0
DECODE_TIMEOUT_S = 20.0
OCR_TIMEOUT_S = 60.0
MAX_FILES_PER_PROCESS = 200
MAX_RESPONSE_BYTES = 64 * 1024 * 1024
# The weights of the text reader and the threads of its library need more address space.
MAX_MEMORY_BYTES = {"images": 2 * 1024**3, "text": 6 * 1024**3}
DEFAULT_IMAGE_SIDE = 2048


class DecoderProcess:
    """One child process, started at the first file. It decodes one file after another."""

    def __init__(self, kind: str, user: str) -> None:
        self._kind = kind
        self._user = user
        self._process: PipedProcess | None = None
        self._pipes = AsyncExitStack()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.WriteTransport | None = None
        self._files = 0
        self._lock = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """Return the process id, or None if the process is not running."""
        return self._process.pid if self._process is not None else None

    async def run(self, request: DecodeRequest, result_type: type[T], timeout_s: float) -> T:
        """Run an operation and return its result. Raise CaptureError if the file cannot be decoded."""
        async with self._lock:
            try:
                if self._process is None:
                    await self._start()
                async with asyncio.timeout(timeout_s):
                    response = await self._exchange(request)
            except TimeoutError as error:
                await self.kill()
                raise CaptureError("The file takes too long to decode.", retry=False) from error
            except (OSError, EOFError, msgspec.MsgspecError) as error:
                await self.kill()
                raise CaptureError("The file cannot be decoded.", retry=False) from error
            except BaseException:  # a cancelled task leaves a half-read response behind
                await self.kill()
                raise
            self._files += 1
            if self._files >= MAX_FILES_PER_PROCESS:
                await self.kill()
        if response.refused is not None:
            raise CaptureError(response.refused, retry=False)
        if response.failed is not None:
            failure = CaptureError("The file cannot be decoded.", retry=False)
            failure.add_note(response.failed)
            raise failure
        return msgspec.msgpack.decode(response.result, type=result_type)

    async def _start(self) -> None:
        load_library("PIL")  # the child could not say that the extra is missing
        user = find_browser_user(self._user)
        self._files = 0
        self._process = PipedProcess(
            [
                *(sys.executable, "-m", "holdfast.systems.capture.decoder_process"),
                *(self._kind, str(MAX_MEMORY_BYTES[self._kind]), *(str(number) for number in user or ())),
            ],
            environment=build_decoder_environment(),
            reads="stdout",
        )
        self._reader = await self._pipes.enter_async_context(open_pipe_reader(self._process.output))
        self._writer = await self._process.open_input()
        self._pipes.callback(self._writer.close)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._reader.readexactly(len(READY))
        except (TimeoutError, EOFError) as error:
            raise CaptureError("The decoder of images and documents does not start.", retry=True) from error

    async def _exchange(self, request: DecodeRequest) -> DecodeResponse:
        if self._reader is None or self._writer is None or self._writer.is_closing():
            raise EOFError
        data = msgspec.msgpack.encode(request)
        self._writer.write(len(data).to_bytes(8, "big") + data)
        size = int.from_bytes(await self._reader.readexactly(8), "big")
        if size > MAX_RESPONSE_BYTES:
            raise EOFError
        return msgspec.msgpack.decode(await self._reader.readexactly(size), type=DecodeResponse)

    async def kill(self) -> None:
        """End the process. The next file starts another one."""
        process, self._process = self._process, None
        self._reader = self._writer = None
        if process is not None:
            process.kill()
            await process.wait()
            await self._pipes.aclose()


class MediaDecoder:
    """Decoder of images and PDFs for a worker. Open it in the lifespan; it starts processes at first use.

    Arguments:
        user: the user that runs the processes if the worker is root
        decode_timeout_s: the maximum time for one image or PDF
        ocr_timeout_s: the maximum time to read the text of one image
    """

    def __init__(
        self,
        *,
        user: str = "nobody",
        decode_timeout_s: float = DECODE_TIMEOUT_S,
        ocr_timeout_s: float = OCR_TIMEOUT_S,
    ) -> None:
        self._images = DecoderProcess("images", user)
        self._text = DecoderProcess("text", user)
        self._decode_timeout_s = decode_timeout_s
        self._ocr_timeout_s = ocr_timeout_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the processes."""
        await self._images.kill()
        await self._text.kill()

    @property
    def pids(self) -> tuple[int, ...]:
        """Return the ids of the running processes."""
        return tuple(pid for pid in (self._images.pid, self._text.pid) if pid is not None)

    async def decode_image(
        self, content: bytes, *, max_side: int = DEFAULT_IMAGE_SIDE, output_format: str = "WEBP"
    ) -> DecodedImage:
        """Decode an image and encode it again. Raise CaptureError for invalid files and for bombs."""
        options: dict[str, Any] = {"max_side": max_side, "output_format": output_format}
        request = DecodeRequest(operation="decode_image", content=content, options=options)
        return await self._images.run(request, DecodedImage, self._decode_timeout_s)

    async def render_pdf_page(self, content: bytes, *, width: int) -> RenderedPage:
        """Render the first page of a PDF. Raise CaptureError if the file is not a valid PDF."""
        request = DecodeRequest(operation="render_pdf_page", content=content, options={"width": width})
        return await self._images.run(request, RenderedPage, self._decode_timeout_s)

    async def read_image_text(self, content: bytes) -> str:
        """Read the text in an image (OCR). Return an empty string if there is none."""
        request = DecodeRequest(operation="read_image_text", content=content)
        return await self._text.run(request, str, self._ocr_timeout_s)


def build_decoder_environment() -> dict[str, str]:
    """Return the environment of a decoder. It has none of the worker's secrets."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "LANG": "C.UTF-8",
        "HOME": "/nonexistent",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
