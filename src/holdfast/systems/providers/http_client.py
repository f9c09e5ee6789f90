"""HTTP client for OpenAI-compatible servers, with time and size limits for responses."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from holdfast import RateLimited, Reject, Secret
from holdfast.errors import SettingsError
from holdfast.systems.providers import ProviderError

MAX_RETRY_AFTER = timedelta(hours=1)
MAX_CONNECT_TIMEOUT_S = 10.0
RETRYABLE_STATUS_CODES = {408, 409, 425, 500, 502, 503, 504, 520, 522, 524, 529}


class ProviderHttpClient:
    """HTTP client for one text or speech provider.

    `name` is "text" or "speech". It appears in the names of settings and in error messages.
    """

    def __init__(
        self, base_url: str, api_key: Secret | None, *, name: str, timeout: timedelta, transport: Any = None
    ) -> None:
        url = urlsplit(base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise SettingsError(
                f"{name}_url is not a valid HTTP URL.",
                fix="Use a base URL such as https://api.example.com/v1.",
                field=f"{name}_url",
            )
        self.limit_key = f"{name}:{url.hostname}"
        self._name = name
        timeout_s = timeout.total_seconds()
        self._client = httpx.AsyncClient(
            base_url=base_url.rstrip("/") + "/",
            headers={"Authorization": f"Bearer {api_key.reveal()}"} if api_key else {},
            timeout=httpx.Timeout(timeout_s, connect=min(MAX_CONNECT_TIMEOUT_S, timeout_s)),
            follow_redirects=False,
            transport=transport,
        )
        self._timeout = timeout

    async def close(self) -> None:
        await self._client.aclose()

    async def post_json(self, path: str, body: dict[str, Any], *, max_bytes: int) -> bytes:
        """Send `body` as JSON and return the response body.

        Raise ProviderError if the response is larger than `max_bytes` or takes longer than the timeout.
        """
        try:
            async with asyncio.timeout(self._timeout.total_seconds()):
                async with self._client.stream("POST", path, json=body) as response:
                    self._raise_for_status(response)
                    return await self._read_limited_body(response, max_bytes)
        except TimeoutError:
            raise ProviderError(
                f"The {self._name} provider did not respond within {self._timeout}."
            ) from None
        except httpx.HTTPError as error:
            # The library's message may contain the URL, so only the type of the error is shown.
            raise ProviderError(
                f"The {self._name} provider cannot be reached: {type(error).__name__}."
            ) from None

    async def _read_limited_body(self, response: httpx.Response, max_bytes: int) -> bytes:
        chunks: list[bytes] = []
        size = 0
        async for chunk in response.aiter_bytes():
            size += len(chunk)
            if size > max_bytes:
                raise ProviderError(f"The {self._name} provider sent more than {max_bytes:,} bytes.")
            chunks.append(chunk)
        return b"".join(chunks)

    def _raise_for_status(self, response: httpx.Response) -> None:
        status = response.status_code
        if status < 300:
            return
        retry_after = parse_retry_after(response.headers.get("retry-after"))
        if status == 429:
            raise RateLimited(self.limit_key, retry_after or timedelta(seconds=1))
        if status in RETRYABLE_STATUS_CODES or status >= 500:
            raise ProviderError(f"The {self._name} provider returned HTTP {status}.", retry_after)
        if status in (401, 403):
            raise Reject(f"The {self._name} provider rejected the API key (HTTP {status}).")
        raise Reject(f"The {self._name} provider rejected the request (HTTP {status}).")


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


def decode_provider_response(body: bytes, struct: type[Any], provider: str) -> Any:
    """Decode the JSON response of a provider. Raise ProviderError if the response is invalid."""
    try:
        return msgspec.json.decode(body, type=struct)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ProviderError(f"The response of the {provider} provider is not valid.") from None
