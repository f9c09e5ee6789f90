"""Decoders of Brotli and Zstandard, which need the packages of the extra `egress`.

Both libraries can limit how much they produce at once. Without them, the client does not announce these
encodings, and servers send gzip.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any, Final

from holdfast.egress.errors import EgressResponseError

MAX_CHUNK_BYTES: Final = 64 * 1024
MAX_ZSTD_WINDOW_LOG: Final = 23  # 8 MB, the maximum for HTTP (RFC 9659)
_ZSTD_MODULES: Final = ("compression.zstd", "backports.zstd")  # the standard library has it since Python 3.14


def find_module(*names: str) -> Any:
    """Return the first of these modules that is installed, or None."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


BROTLI: Final[Any] = find_module("brotli")
ZSTD: Final[Any] = find_module(*_ZSTD_MODULES)


class BrotliDecoder:
    """Decoder of Brotli."""

    def __init__(self) -> None:
        self._stream = BROTLI.Decompressor()
        self._has_data = False

    def decode(self, data: bytes) -> Iterator[bytes]:
        if not data or self._stream.is_finished():
            return
        self._has_data = True
        try:
            piece = self._stream.process(data, output_buffer_limit=MAX_CHUNK_BYTES)
            while piece or not self._stream.can_accept_more_data():
                yield piece
                if self._stream.is_finished():
                    return
                piece = self._stream.process(b"", output_buffer_limit=MAX_CHUNK_BYTES)
        except BROTLI.error:
            raise EgressResponseError("The compressed response is damaged.") from None

    def finish(self) -> None:
        if self._has_data and not self._stream.is_finished():
            raise EgressResponseError("The compressed response ended early.")


class ZstdDecoder:
    """Decoder of Zstandard, also of several frames in a row."""

    def __init__(self) -> None:
        self._frame = self._open_frame()
        self._has_data = False

    def _open_frame(self) -> Any:
        options = {ZSTD.DecompressionParameter.window_log_max: MAX_ZSTD_WINDOW_LOG}
        return ZSTD.ZstdDecompressor(options=options)

    def decode(self, data: bytes) -> Iterator[bytes]:
        self._has_data = self._has_data or bool(data)
        try:
            while data:
                if self._frame.eof:
                    self._frame = self._open_frame()
                piece = self._frame.decompress(data, MAX_CHUNK_BYTES)
                while piece:
                    yield piece
                    done = self._frame.eof or self._frame.needs_input
                    piece = b"" if done else self._frame.decompress(b"", MAX_CHUNK_BYTES)
                data = self._frame.unused_data if self._frame.eof else b""
        except ZSTD.ZstdError:
            raise EgressResponseError("The compressed response is damaged.") from None

    def finish(self) -> None:
        if self._has_data and not self._frame.eof:
            raise EgressResponseError("The compressed response ended early.")
