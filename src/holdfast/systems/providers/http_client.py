"""HTTP client of providers, behind the egress guard, with limits on time and size.

One call is one request. After a response 429, the client sends nothing until the provider's Retry-After has
passed: every call that starts in the meantime raises ProviderRateLimitedError at once.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Literal, NoReturn, TypeVar
from urllib.parse import urlencode, urlsplit
from uuid import uuid4

import msgspec

from holdfast.egress import (
    EgressClient,
    EgressDnsError,
    EgressError,
    EgressPolicy,
    EgressRefusedError,
    EgressStream,
    EgressTimeoutError,
    EgressTooLargeError,
)
from holdfast.systems.providers.config import ProviderConfig
from holdfast.systems.providers.errors import (
    ProviderRateLimitedError,
    ProviderRefusedError,
    ProviderResponseError,
    ProviderUnavailableError,
)
from holdfast.systems.providers.metering import CallMeter, MeteredCall
from holdfast.systems.providers.usage import ProviderUsage, UsageAccount

T = TypeVar("T")

MAX_RETRY_AFTER = timedelta(hours=1)
DEFAULT_RETRY_AFTER = timedelta(seconds=5)  # for a 429 that names no delay
MAX_CONNECT_TIMEOUT = timedelta(seconds=10)
MAX_CONNECTIONS = 64  # limits of the engine say how many calls run at once
RETRYABLE_STATUS_CODES = {408, 409, 425}
JSON_TYPES = ("application/json",)
EVENT_STREAM_TYPE = "text/event-stream"
_log = logging.getLogger("holdfast.systems.providers")


class ProviderHttpClient:
    """HTTP client of one remote provider. `max_bytes` is the maximum size of a response."""

    def __init__(
        self,
        config: ProviderConfig,
        *,
        max_bytes: int,
        meter: CallMeter | None = None,
        policy: EgressPolicy | None = None,
    ) -> None:
        self.config = config
        self.limit_key = f"{config.kind}:{config.host}"
        self._meter = meter or CallMeter(config.kind, config.host, config.model)
        self._egress = EgressClient(
            replace(
                policy or EgressPolicy.from_settings(),
                max_response_bytes=max_bytes,
                connect_timeout=min(MAX_CONNECT_TIMEOUT, config.timeout),
                idle_timeout=config.timeout,
                total_timeout=config.timeout,
                max_connections_per_host=MAX_CONNECTIONS,
            )
        )
        self._paused_until = 0.0

    async def close(self) -> None:
        await self._egress.close()

    @asynccontextmanager
    async def open_call(self, account: UsageAccount) -> AsyncGenerator[ProviderCall]:
        """Open a call that is charged to `account`. Send one request in the block, and set its usage."""
        self._check_pause()
        async with self._meter.measure_call(account) as metered:
            yield ProviderCall(self, metered)

    def _check_pause(self) -> None:
        remaining_s = self._paused_until - asyncio.get_running_loop().time()
        if remaining_s > 0:
            raise ProviderRateLimitedError(
                f"The {self.config.kind} provider limits the request rate.", timedelta(seconds=remaining_s)
            )

    async def send(
        self,
        call: MeteredCall,
        path: str,
        content: bytes,
        headers: Mapping[str, str],
        content_types: tuple[str, ...],
        method: Literal["GET", "POST"] = "POST",
    ) -> bytes:
        """Send one request and return the response body. Raise a ProviderError for every failure."""
        async with self.open_response(call, path, content, headers, content_types, method) as response:
            return await response.read()

    @asynccontextmanager
    async def open_response(
        self,
        call: MeteredCall,
        path: str,
        content: bytes,
        headers: Mapping[str, str],
        content_types: tuple[str, ...],
        method: Literal["GET", "POST"] = "POST",
    ) -> AsyncGenerator[EgressStream]:
        """Send one request and yield the response. Raise a ProviderError, also while its body is read."""
        url = f"{self.config.url.rstrip('/')}/{path}"
        key = self.config.api_key
        headers = {**headers, **({"Authorization": f"Bearer {key.reveal()}"} if key else {})}
        try:
            call.was_sent = True
            stream = self._egress.stream(method, url, content, headers=headers, follow_redirects=False)
            async with stream as response:
                if response.status >= 300:
                    call.was_sent = False  # an error is not charged
                    self._raise_for_status(response)
                self._check_content_type(response, content_types)
                yield response
        except EgressError as error:
            if isinstance(error, EgressRefusedError | EgressDnsError):
                call.was_sent = False
            self._raise_for_egress_error(error)

    def _raise_for_status(self, response: EgressStream) -> NoReturn:
        status, kind = response.status, self.config.kind
        retry_after = parse_retry_after(response.headers.get("retry-after"))
        if status == 429:
            delay = retry_after or DEFAULT_RETRY_AFTER
            now = asyncio.get_running_loop().time()
            self._paused_until = max(self._paused_until, now + delay.total_seconds())
            raise ProviderRateLimitedError(f"The {kind} provider limits the request rate.", delay)
        if status in RETRYABLE_STATUS_CODES or status >= 500:
            raise ProviderUnavailableError(f"The {kind} provider returned HTTP {status}.", retry_after)
        if status in (401, 403):
            raise ProviderRefusedError(f"The {kind} provider rejected the API key (HTTP {status}).")
        raise ProviderRefusedError(f"The {kind} provider rejected the request (HTTP {status}).")

    def _check_content_type(self, response: EgressStream, content_types: tuple[str, ...]) -> None:
        if not response.content_type.startswith(content_types):
            raise ProviderResponseError(
                f"The response of the {self.config.kind} provider has an unexpected content type."
            )

    def _raise_for_egress_error(self, error: EgressError) -> NoReturn:
        kind = self.config.kind
        if isinstance(error, EgressRefusedError):
            # Users may read the message, so it does not contain the address.
            _log.error(
                "provider.refused kind=%s url=%s reason=%r fix='Add the host and port to egress_allow.'",
                *(kind, redact_credentials(self.config.url), error.message),
            )
            raise ProviderRefusedError(
                f"The egress policy does not allow {kind}_url (see the setting egress_allow)."
            ) from error
        if isinstance(error, EgressTimeoutError):
            raise ProviderUnavailableError(
                f"The {kind} provider did not respond within {self.config.timeout.total_seconds():g} seconds."
            ) from error
        if isinstance(error, EgressTooLargeError):
            raise ProviderResponseError(f"The response of the {kind} provider is too large.") from error
        raise ProviderUnavailableError(
            f"The {kind} provider cannot be reached, or the connection broke ({error.reason})."
        ) from error


class ProviderCall:
    """One request to a provider, whose usage is recorded when the block of `open_call` ends."""

    def __init__(self, client: ProviderHttpClient, metered: MeteredCall) -> None:
        self._client = client
        self._metered = metered

    def set_usage(self, usage: ProviderUsage) -> None:
        """Store what the call used, as soon as it is known."""
        self._metered.usage = usage

    async def post_json(
        self, path: str, body: Mapping[str, Any], *, content_types: tuple[str, ...] = JSON_TYPES
    ) -> bytes:
        """Send `body` as JSON and return the response body."""
        headers = {"Content-Type": "application/json"}
        return await self._client.send(self._metered, path, msgspec.json.encode(body), headers, content_types)

    async def stream_json(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[bytes]:
        """Send `body` as JSON and yield the data of each server-sent event, up to the final `[DONE]`.

        A server that does not stream answers with one JSON object, which is yielded as it is. Raise
        ProviderUnavailableError if the stream ends without `[DONE]`: then the answer is not complete.
        """
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json"}
        content, types = msgspec.json.encode(body), (*JSON_TYPES, EVENT_STREAM_TYPE)
        async with self._client.open_response(self._metered, path, content, headers, types) as response:
            if not response.content_type.startswith(EVENT_STREAM_TYPE):
                yield await response.read()
                return
            buffer = b""
            async for piece in response.iterate_bytes():
                *lines, buffer = (buffer + piece).split(b"\n")
                for line in lines:
                    data = line.removeprefix(b"data:").strip()
                    if data == b"[DONE]":
                        return
                    if line.startswith(b"data:") and data:
                        yield data
        kind = self._client.config.kind
        raise ProviderUnavailableError(f"The {kind} provider stopped in the middle of its answer.")

    async def get_json(self, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> bytes:
        """Send a GET request with a query, and return the response body."""
        target = f"{path}?{urlencode(query)}"
        return await self._client.send(self._metered, target, b"", headers, JSON_TYPES, method="GET")

    async def post_form(
        self,
        path: str,
        fields: Mapping[str, str],
        *,
        file: tuple[str, bytes, str],
        content_types: tuple[str, ...] = JSON_TYPES,
    ) -> bytes:
        """Send a form with one file in the field "file", and return the response body.

        `file` is the name, the content and the content type.
        """
        boundary = f"holdfast-{uuid4().hex}"
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        content = encode_form(fields, file, boundary)
        return await self._client.send(self._metered, path, content, headers, content_types)

    def decode(self, body: bytes, struct: type[T]) -> T:
        """Decode a JSON response. Raise ProviderResponseError if it is malformed."""
        try:
            return msgspec.json.decode(body, type=struct)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            kind = self._client.config.kind
            raise ProviderResponseError(f"The response of the {kind} provider is not valid.") from None


def redact_credentials(url: str) -> str:
    """Return the scheme, host and port of a URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def encode_form(fields: Mapping[str, str], file: tuple[str, bytes, str], boundary: str) -> bytes:
    """Return a multipart/form-data body. Characters of the file name that could end its header are replaced.

    Names and values of fields come from the client, not from users.
    """
    name, content, content_type = re.sub(r"[^A-Za-z0-9._-]", "_", file[0]), file[1], file[2]
    parts: list[bytes] = []
    for field_name, value in fields.items():
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{field_name}"\r\n\r\n'
        parts.append(f"{head}{value}\r\n".encode())
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
        f"Content-Type: {content_type}\r\n\r\n"
    )
    return b"".join([*parts, head.encode(), content, f"\r\n--{boundary}--\r\n".encode()])


def parse_retry_after(header: str | None) -> timedelta | None:
    """Parse a `Retry-After` header: seconds or a date (RFC 9110).

    Return None for a missing or invalid header. Return at most one hour.
    """
    if not header:
        return None
    try:
        delay = timedelta(seconds=float(header))
    except (ValueError, OverflowError):
        try:
            delay = parsedate_to_datetime(header) - datetime.now(UTC)
        except (ValueError, TypeError):
            return None
    return min(max(delay, timedelta(0)), MAX_RETRY_AFTER)


class HttpProvider:
    """What all providers over HTTP share: a client with the limit of their responses, and its end."""

    max_response_bytes: ClassVar[int]

    def __init__(
        self, config: ProviderConfig, *, meter: CallMeter | None = None, policy: EgressPolicy | None = None
    ) -> None:
        self._http = ProviderHttpClient(config, max_bytes=self.max_response_bytes, meter=meter, policy=policy)
        self._config = config

    @property
    def limit_key(self) -> str:
        return self._http.limit_key

    async def close(self) -> None:
        await self._http.close()
