"""One POST to an OpenAI-compatible server, bounded in time and size, and its refusals in our words."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from holdfast.errors import RateLimited, Reject, SettingsError
from holdfast.settings import Secret
from holdfast.systems.providers import ProviderError

LONGEST_REST = timedelta(hours=1)
RETRYABLE = {408, 409, 425, 500, 502, 503, 504, 520, 522, 524, 529}


class Wire:
    def __init__(
        self, base: str, key: Secret | None, *, name: str, timeout: timedelta, transport: Any = None
    ) -> None:
        parts = urlsplit(base)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingsError(f"{name}_url is not a web address.", field=f"{name}_url")
        self.key = f"{name}:{parts.hostname}"
        self._name = name
        self._client = httpx.AsyncClient(
            base_url=base.rstrip("/") + "/",
            headers={"Authorization": f"Bearer {key.reveal()}"} if key else {},
            timeout=httpx.Timeout(timeout.total_seconds(), connect=min(10.0, timeout.total_seconds())),
            follow_redirects=False,
            transport=transport,
        )
        self._patience = timeout

    async def close(self) -> None:
        await self._client.aclose()

    async def post(self, path: str, body: dict[str, Any], *, most: int) -> tuple[bytes, str]:
        """The answer's bytes and content type. Never more than `most`, never longer than the timeout."""
        try:
            async with asyncio.timeout(self._patience.total_seconds()):
                async with self._client.stream("POST", path, json=body) as response:
                    self._check(response)
                    parts: list[bytes] = []
                    size = 0
                    async for part in response.aiter_bytes():
                        size += len(part)
                        if size > most:
                            raise ProviderError(f"The {self._name} provider sent more than {most:,} bytes.")
                        parts.append(part)
                    return b"".join(parts), response.headers.get("content-type", "")
        except TimeoutError:
            raise ProviderError(
                f"The {self._name} provider did not answer within {self._patience}."
            ) from None
        except httpx.HTTPError as problem:
            # The texts of the library may hold the address; its type says enough.
            raise ProviderError(
                f"The {self._name} provider cannot be reached: {type(problem).__name__}."
            ) from None

    def _check(self, response: httpx.Response) -> None:
        status = response.status_code
        if status < 300:
            return
        wait = retry_after(response.headers.get("retry-after"))
        if status == 429:
            raise RateLimited(self.key, wait or timedelta(seconds=1))
        if status in RETRYABLE or status >= 500:
            raise ProviderError(f"The {self._name} provider answered {status}.", wait)
        if status in (401, 403):
            raise Reject(f"The {self._name} provider does not accept our key ({status}).")
        raise Reject(f"The {self._name} provider refused the request ({status}).")


def retry_after(header: str | None) -> timedelta | None:
    """Seconds or a date (RFC 9110); nonsense counts as not said, and nothing rests longer than an hour."""
    if not header:
        return None
    try:
        wait = timedelta(seconds=float(header))
    except (ValueError, OverflowError):
        try:
            wait = parsedate_to_datetime(header) - datetime.now(UTC)
        except (ValueError, TypeError):
            return None
    return min(max(wait, timedelta(0)), LONGEST_REST)


def decoded(text: bytes, kind: type[Any], name: str) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ProviderError(f"The {name} provider's answer cannot be read.") from None
