"""Links that lead to the API from outside: they start with the public URL, or with the mounted prefix.

The setting `public_url` is the URL under which clients reach the API. Without it, a link is a path. During a
request the path starts with the prefix that the application is mounted under; a worker and a command do not
know the prefix, so they need the setting.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from types import TracebackType

from holdfast.settings import Settings

_request_prefix: ContextVar[str] = ContextVar("holdfast_request_prefix", default="")


def build_public_link(settings: Settings, path: str) -> str:
    """Return the link of a path of the API, such as `/files/...`."""
    return (settings.public_url or _request_prefix.get()) + path


class RequestPrefix(AbstractContextManager[None]):
    """Context manager: links that are built inside start with the prefix of a mounted application."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.rstrip("/")

    def __enter__(self) -> None:
        self._token = _request_prefix.set(self._prefix)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _request_prefix.reset(self._token)
