"""The errors of providers: four reasons, so that callers can decide what to do next.

    ProviderError                      any failure of a provider
    ├── ProviderRateLimitedError       too many requests; `retry_after` says how long to wait
    ├── ProviderUnavailableError       it does not respond or has an error of its own; a retry can succeed
    ├── ProviderRefusedError           it refused the request, or must not be reached; a retry cannot succeed
    └── ProviderResponseError          its answer is malformed, too large or empty; a retry can succeed

The messages may be shown to users. They contain no URL, no key and nothing that the provider sent.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta

from holdfast import PublicError, RateLimited, Reject


class ProviderError(PublicError):
    """A provider failed. `retry` says whether another attempt can succeed, `retry_after` how soon."""

    retry = True

    def __init__(self, message: str, retry_after: timedelta | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after


class ProviderRateLimitedError(ProviderError):
    """The provider limits the request rate. `retry_after` is the delay that it asked for."""


class ProviderUnavailableError(ProviderError):
    """The provider did not respond in time, cannot be reached, or returned a server error."""


class ProviderRefusedError(ProviderError):
    """The provider refused the request, or the egress policy refused its address."""

    retry = False


class ProviderResponseError(ProviderError):
    """The response of the provider is malformed, too large, empty or of another content type."""


@contextmanager
def translate_provider_errors(limit_key: str) -> Generator[None]:
    """Context manager for tasks: raise what the worker understands instead of errors of providers.

    A rate limit pauses `limit_key` on all workers for as long as the provider asked. A refusal rejects the
    task. All other errors are retried, not before `retry_after`.
    """
    try:
        yield
    except ProviderRateLimitedError as error:
        raise RateLimited(limit_key, error.retry_after) from error
    except ProviderRefusedError as error:
        raise Reject(error.message) from error
