"""The guarded HTTP client. Every request and every redirect passes the policy."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Self

from holdfast import telemetry
from holdfast.egress.bodies import RequestBody, build_body_headers, check_request_headers, iterate_body
from holdfast.egress.decompression import ACCEPT_ENCODING, BoundedBody
from holdfast.egress.errors import (
    EgressContentTypeError,
    EgressRedirectError,
    EgressRefusedError,
    EgressResponseError,
    EgressTooLargeError,
)
from holdfast.egress.host_limits import HostLimiter
from holdfast.egress.policy import EgressPolicy
from holdfast.egress.redirects import REDIRECT_STATUSES, EgressRequest
from holdfast.version import __version__

if TYPE_CHECKING:
    import httpcore

EgressMethod = Literal["GET", "HEAD", "POST"]
DEFAULT_HEADERS: Final = {
    "User-Agent": f"holdfast/{__version__}",
    "Accept": "*/*",
    "Accept-Encoding": ACCEPT_ENCODING,
}


@dataclass(frozen=True)
class EgressResponse:
    """A complete response. `url` is the URL after redirects. The names of headers are lower case.

    >>> from holdfast.egress import EgressResponse
    >>> EgressResponse(status=204, url="https://example.com/", headers={}, body=b"").status
    204
    """

    status: int
    url: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def content_type(self) -> str:
        """Return the media type in lower case without parameters, or an empty string."""
        return parse_media_type(self.headers)


class EgressStream:
    """A response whose body has not been read. `EgressClient.stream` creates it.

    >>> from holdfast.egress import EgressClient, EgressStream
    >>> async def main() -> None:
    ...     async with EgressClient() as client, client.stream("GET", "https://example.com/hook") as response:
    ...         assert isinstance(response, EgressStream)
    ...         async for chunk in response.iterate_bytes():
    ...             print(len(chunk))
    """

    def __init__(
        self, response: httpcore.Response, request: EgressRequest, policy: EgressPolicy, deadline: float
    ) -> None:
        self.status = response.status
        self.url = str(request.url)
        self.headers = join_headers(response.headers)
        self._response = response
        self._has_body = request.method != "HEAD"
        self._deadline = deadline
        encoding = self.headers.get("content-encoding", "") if self._has_body else ""
        self._decoder = BoundedBody(encoding, policy.max_response_bytes, policy.max_decompression_ratio)
        self._check_declared_size(policy.max_response_bytes)

    @property
    def content_type(self) -> str:
        """Return the media type in lower case without parameters, or an empty string."""
        return parse_media_type(self.headers)

    async def iterate_bytes(self) -> AsyncIterator[bytes]:
        """Yield the decompressed body in pieces. Read it once.

        Raise EgressTooLargeError, EgressTimeoutError, EgressConnectError or EgressResponseError.
        """
        if not self._has_body:
            return
        pieces = aiter(self._response.aiter_stream())
        while (data := await self._read_piece(pieces)) is not None:
            for piece in self._decoder.decode(data):
                yield piece
        self._decoder.finish()

    async def read(self) -> bytes:
        """Return the whole decompressed body."""
        return b"".join([piece async for piece in self.iterate_bytes()])

    async def _read_piece(self, pieces: AsyncIterator[bytes]) -> bytes | None:
        from holdfast.egress.connections import translate_errors  # noqa: PLC0415  (httpcore is slow to import)

        with translate_errors():
            async with asyncio.timeout_at(self._deadline):
                return await anext(pieces, None)

    def _check_declared_size(self, max_bytes: int) -> None:
        length = self.headers.get("content-length", "")
        if self._has_body and length.isdigit() and int(length[:19]) > max_bytes:
            raise EgressTooLargeError(f"The response is larger than {max_bytes} bytes.")


class EgressClient:
    """HTTP client for URLs that users chose. It cannot reach private networks (SSRF).

    >>> from holdfast.egress import EgressClient
    >>> async def main() -> None:
    ...     async with EgressClient() as client:
    ...         response = await client.get("https://example.com/hook")
    ...         print(response.status, response.content_type, len(response.body))

    The client checks every URL and every redirect, connects to the checked address, and limits time, size,
    decompression and requests per host. Every failure is an `EgressError`. Statuses such as 404 are no error.
    Requests do not use the proxy of the environment. One client may be used by many asyncio tasks at once.

    Arguments:
        policy: what may be reached, and the limits (default: `EgressPolicy.from_settings()`)
        ssl_context: the TLS settings, for example with your own certificate authority (default: the system's)
    """

    def __init__(
        self, policy: EgressPolicy | None = None, *, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        from holdfast.egress.connections import create_connection_pool  # noqa: PLC0415  (slow to import)

        self.policy = policy or EgressPolicy.from_settings()
        self._pool = create_connection_pool(self.policy, ssl_context)
        self._limiter = HostLimiter(self.policy.max_connections_per_host, self.policy.max_requests_per_second)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.aclose()

    async def get(self, url: str, *, headers: Mapping[str, str] | None = None) -> EgressResponse:
        """Send a GET request, follow redirects and return the complete response."""
        return await self._request("GET", url, headers, None)

    async def head(self, url: str, *, headers: Mapping[str, str] | None = None) -> EgressResponse:
        """Send a HEAD request, follow redirects and return the response without a body."""
        return await self._request("HEAD", url, headers, None)

    async def post(
        self, url: str, body: RequestBody = b"", *, headers: Mapping[str, str] | None = None
    ) -> EgressResponse:
        """Send a POST request, follow redirects and return the complete response."""
        return await self._request("POST", url, headers, body)

    @asynccontextmanager
    async def stream(
        self,
        method: EgressMethod,
        url: str,
        body: RequestBody = None,
        *,
        headers: Mapping[str, str] | None = None,
        follow_redirects: bool = True,
    ) -> AsyncGenerator[EgressStream]:
        """Send a request and yield the response when its headers have arrived, without reading its body.

        With `follow_redirects=False`, a redirect is returned like any other response.
        """
        deadline = asyncio.get_running_loop().time() + self.policy.total_timeout.total_seconds()
        async with AsyncExitStack() as stack:
            try:
                request = self._build_first_request(method, url, headers or {}, body)
                response = await self._follow(request, stack, deadline, follow_redirects)
            except EgressRefusedError as error:
                telemetry.emit("egress.refused", source="client", target=url[:200], reason=error.message)
                raise
            yield response

    def _build_first_request(
        self, method: EgressMethod, url: str, headers: Mapping[str, str], body: RequestBody
    ) -> EgressRequest:
        check_request_headers(headers)
        names = {name.lower() for name in headers}
        defaults = {name: value for name, value in DEFAULT_HEADERS.items() if name.lower() not in names}
        return EgressRequest(method, self.policy.check_url(url), {**defaults, **headers}, body)

    async def _request(
        self, method: EgressMethod, url: str, headers: Mapping[str, str] | None, body: RequestBody
    ) -> EgressResponse:
        async with self.stream(method, url, body, headers=headers) as response:
            return EgressResponse(response.status, response.url, response.headers, await response.read())

    async def _follow(
        self, request: EgressRequest, stack: AsyncExitStack, deadline: float, follow_redirects: bool
    ) -> EgressStream:
        for _ in range(self.policy.max_redirects + 1):
            hop = await stack.enter_async_context(AsyncExitStack())
            response = await self._send(request, hop, deadline)
            location = response.headers.get("location")
            if not follow_redirects or response.status not in REDIRECT_STATUSES or not location:
                self._check_content_type(response)
                return response
            await hop.aclose()
            request = request.follow_redirect(response.status, location, self.policy)
        raise EgressRedirectError(f"The server sent more than {self.policy.max_redirects} redirects.")

    async def _send(self, request: EgressRequest, hop: AsyncExitStack, deadline: float) -> EgressStream:
        """Send one request. Its connection and its place in the limits belong to `hop`."""
        from holdfast.egress.connections import build_timeouts, translate_errors  # noqa: PLC0415

        body = request.body
        framing = build_body_headers(request.method, body, self.policy)
        content = body if body is None or isinstance(body, bytes) else iterate_body(body, self.policy)
        with translate_errors():
            async with asyncio.timeout_at(deadline):
                await hop.enter_async_context(self._limiter.reserve_slot(request.url.host))
                response = await hop.enter_async_context(
                    self._pool.stream(
                        request.method,
                        str(request.url),
                        headers=[
                            (name.encode("ascii"), value.encode("utf-8"))
                            for name, value in {
                                "Host": request.url.authority,
                                **request.headers,
                                **framing,
                            }.items()
                        ],
                        content=content,
                        extensions={"timeout": build_timeouts(self.policy)},
                    )
                )
        if response.status < 200:
            raise EgressResponseError("The server changed the protocol.")
        return EgressStream(response, request, self.policy, deadline)

    def _check_content_type(self, response: EgressStream) -> None:
        allowed = self.policy.content_types
        if not allowed or not 200 <= response.status < 300 or response.status == 204:
            return
        media_type = response.content_type
        if media_type in allowed or f"{media_type.partition('/')[0]}/*" in allowed:
            return
        raise EgressContentTypeError(f"The response has the content type {media_type[:100] or 'none'}.")


def request_blocking(
    method: EgressMethod,
    url: str,
    body: bytes | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    policy: EgressPolicy | None = None,
) -> EgressResponse:
    """Send one request with an `EgressClient` from code that is not asynchronous, and wait for the response.

    >>> from holdfast.egress import request_blocking
    >>> def download(url: str) -> bytes:
    ...     return request_blocking("GET", url).body
    """

    async def run() -> EgressResponse:
        async with (
            EgressClient(policy) as client,
            client.stream(method, url, body, headers=headers) as response,
        ):
            return EgressResponse(response.status, response.url, response.headers, await response.read())

    return asyncio.run(run())


def join_headers(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers as text, with lower-case names. Repeated headers are joined with commas."""
    joined: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined


def parse_media_type(headers: Mapping[str, str]) -> str:
    """Return the media type of headers in lower case, without parameters such as the charset."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()
