"""Request bodies: bytes or a stream of bytes, with a size limit."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from typing import Final, TypeAlias

from holdfast.egress.errors import EgressTooLargeError
from holdfast.egress.policy import EgressPolicy
from holdfast.errors import InvalidError

RequestBody: TypeAlias = bytes | AsyncIterable[bytes] | None

# Headers that frame the message or choose its receiver. The client sets them itself.
_FORBIDDEN_HEADERS: Final = frozenset(
    {"connection", "content-length", "host", "keep-alive", "proxy-authorization", "proxy-connection", "te",
     "trailer", "transfer-encoding", "upgrade"}
)  # fmt: skip


def check_request_headers(headers: Mapping[str, str]) -> None:
    """Raise InvalidError for a header that the client sets itself, and for invalid characters."""
    for name, value in headers.items():
        if name.lower() in _FORBIDDEN_HEADERS:
            raise InvalidError(f"The header {name} cannot be set.", field="headers")
        if not name.isascii() or any((ord(c) < 32 and c != "\t") or ord(c) == 127 for c in name + value):
            raise InvalidError(f"The header {name!r} contains an invalid character.", field="headers")


def build_body_headers(method: str, body: RequestBody, policy: EgressPolicy) -> dict[str, str]:
    """Return the headers that frame a request body. Raise EgressTooLargeError for too many bytes."""
    if isinstance(body, bytes):
        if len(body) > policy.max_request_bytes:
            raise build_request_size_error(policy)
        return {"Content-Length": str(len(body))}
    if body is not None:
        return {"Transfer-Encoding": "chunked"}
    return {"Content-Length": "0"} if method == "POST" else {}


async def iterate_body(body: AsyncIterable[bytes], policy: EgressPolicy) -> AsyncGenerator[bytes]:
    """Yield the pieces of a streamed request body. Raise EgressTooLargeError over the size limit."""
    size = 0
    async for piece in body:
        size += len(piece)
        if size > policy.max_request_bytes:
            raise build_request_size_error(policy)
        if piece:
            yield piece


def build_request_size_error(policy: EgressPolicy) -> EgressTooLargeError:
    """Return the error for a request body that is too large."""
    return EgressTooLargeError(f"The request body is larger than {policy.max_request_bytes} bytes.")
