"""Decompress response bodies in small pieces, so that a decompression bomb is refused before it fills memory.

gzip and deflate are always supported, Brotli and Zstandard if their packages are installed (the extra
`egress`): all of these libraries can limit how much they produce at once. The client announces only what it
supports. A server that sends another encoding anyway gets an error.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from holdfast.egress.errors import EgressResponseError, EgressTooLargeError
from holdfast.egress.optional_decoders import BROTLI, MAX_CHUNK_BYTES, ZSTD, BrotliDecoder, ZstdDecoder

MAX_CONTENT_ENCODINGS: Final = 2
# Small bodies of repeated text compress very well without being an attack.
BYTES_WITHOUT_RATIO_LIMIT: Final = 1024 * 1024
_GZIP_FIRST_BYTE: Final = b"\x1f"


class Decompressor(Protocol):
    """What `zlib.decompressobj` returns."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class Decoder(Protocol):
    """A decoder of one content encoding."""

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Yield the decoded data in pieces of at most MAX_CHUNK_BYTES."""
        ...

    def finish(self) -> None:
        """Raise EgressResponseError if the data ended early."""
        ...


class GzipDecoder:
    """Decoder of gzip, also of several gzip members in a row."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self._has_data = False
        self._ignores_rest = False

    def decode(self, data: bytes) -> Iterator[bytes]:
        self._has_data = self._has_data or bool(data)
        while data and not self._ignores_rest:
            if self._member.eof and data[:1] != _GZIP_FIRST_BYTE:
                self._ignores_rest = True  # padding after the last member, which browsers ignore too
                return
            if self._member.eof:
                self._member = zlib.decompressobj(16 + zlib.MAX_WBITS)
            yield from _decompress_pieces(self._member, data)
            data = self._member.unused_data

    def finish(self) -> None:
        if self._has_data and not self._member.eof:
            raise EgressResponseError("The compressed response ended early.")


class DeflateDecoder:
    """Decoder of deflate, with the zlib header of the standard or without it, as some servers send it."""

    def __init__(self) -> None:
        self._stream: Decompressor | None = None

    def decode(self, data: bytes) -> Iterator[bytes]:
        if not data:
            return
        if self._stream is None:
            has_zlib_header = data[0] & 0x0F == 8 and (len(data) < 2 or (data[0] * 256 + data[1]) % 31 == 0)
            self._stream = zlib.decompressobj(zlib.MAX_WBITS if has_zlib_header else -zlib.MAX_WBITS)
        if not self._stream.eof:
            yield from _decompress_pieces(self._stream, data)

    def finish(self) -> None:
        if self._stream is not None and not self._stream.eof:
            raise EgressResponseError("The compressed response ended early.")


def _decompress_pieces(stream: Decompressor, data: bytes) -> Iterator[bytes]:
    try:
        piece = stream.decompress(data, MAX_CHUNK_BYTES)
        while piece:
            yield piece
            piece = b"" if stream.eof else stream.decompress(stream.unconsumed_tail, MAX_CHUNK_BYTES)
    except zlib.error:
        raise EgressResponseError("The compressed response is damaged.") from None


_DECODER_BY_NAME: Final[dict[str, Callable[[], Decoder]]] = {
    "gzip": GzipDecoder,
    "deflate": DeflateDecoder,
    **({"br": BrotliDecoder} if BROTLI is not None else {}),
    **({"zstd": ZstdDecoder} if ZSTD is not None else {}),
}
ACCEPT_ENCODING: Final = ", ".join(_DECODER_BY_NAME)


class BoundedBody:
    """Decoder of a response body, with a maximum size and a maximum ratio of decoded to received bytes."""

    def __init__(self, content_encoding: str, max_bytes: int, max_ratio: int) -> None:
        self._decoders = _create_decoders(content_encoding)
        self._max_bytes = max_bytes
        self._max_ratio = max_ratio
        self.received_bytes = 0
        self.decoded_bytes = 0

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Yield the decoded data in pieces. Raise EgressTooLargeError at the first byte over a limit."""
        self.received_bytes += len(data)
        self._check_size(self.received_bytes)
        for piece in _decode_all(self._decoders, data):
            self.decoded_bytes += len(piece)
            self._check_size(self.decoded_bytes)
            self._check_ratio()
            yield piece

    def finish(self) -> None:
        """Raise EgressResponseError if the compressed data ended early."""
        for decoder in self._decoders:
            decoder.finish()

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise EgressTooLargeError(f"The response is larger than {self._max_bytes} bytes.")

    def _check_ratio(self) -> None:
        if self.decoded_bytes <= BYTES_WITHOUT_RATIO_LIMIT or not self._decoders:
            return
        if self.decoded_bytes > self.received_bytes * self._max_ratio:
            raise EgressTooLargeError(f"The response expands to more than {self._max_ratio} times its size.")


def _create_decoders(content_encoding: str) -> list[Decoder]:
    """Return the decoders in the order in which they are applied: the last encoding first."""
    names = [name for part in content_encoding.lower().split(",") if (name := part.strip())]
    names = [name for name in names if name != "identity"]
    if len(names) > MAX_CONTENT_ENCODINGS:
        raise EgressResponseError("The response is compressed more than twice.")
    decoders: list[Decoder] = []
    for name in reversed(names):
        create_decoder = _DECODER_BY_NAME.get(name.removeprefix("x-"))
        if create_decoder is None:
            raise EgressResponseError("The response has a compression that was not requested.")
        decoders.append(create_decoder())
    return decoders


def _decode_all(decoders: list[Decoder], data: bytes) -> Iterator[bytes]:
    if not decoders:
        if data:
            yield data
        return
    for piece in decoders[0].decode(data):
        yield from _decode_all(decoders[1:], piece)
