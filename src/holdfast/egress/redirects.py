"""Redirects: the method, the headers and the URL of the next request, as RFC 9110 and browsers have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urljoin

from holdfast.egress.bodies import RequestBody
from holdfast.egress.errors import EgressRedirectError
from holdfast.egress.policy import EgressPolicy
from holdfast.egress.urls import EgressUrl

REDIRECT_STATUSES: Final = frozenset({301, 302, 303, 307, 308})
# Every other header may carry credentials (Authorization, Cookie, X-Api-Key), so only these cross origins.
_HEADERS_FOR_OTHER_ORIGINS: Final = frozenset(
    {"accept", "accept-encoding", "accept-language", "content-type", "range", "user-agent"}
)


@dataclass(frozen=True)
class EgressRequest:
    """One request of a chain of redirects."""

    method: str
    url: EgressUrl
    headers: Mapping[str, str]
    body: RequestBody

    def follow_redirect(self, status: int, location: str, policy: EgressPolicy) -> EgressRequest:
        """Return the next request. Raise EgressRefusedError if the policy does not allow its URL."""
        url = policy.check_url(_resolve_location(self.url, location))
        method, headers, body = self.method, dict(self.headers), self.body
        becomes_get = status == 303 or (status in (301, 302) and method == "POST")
        if becomes_get and method != "HEAD":
            method, body = "GET", None
            headers = {n: v for n, v in headers.items() if not n.lower().startswith("content-")}
        elif body is not None and not isinstance(body, bytes):
            raise EgressRedirectError("The server redirected a streamed body, which cannot be sent again.")
        if url.origin != self.url.origin:
            headers = {n: v for n, v in headers.items() if n.lower() in _HEADERS_FOR_OTHER_ORIGINS}
        return EgressRequest(method, url, headers, body)


def _resolve_location(base: EgressUrl, location: str) -> str:
    try:
        # The header is bytes. Browsers read it as UTF-8 where it is not ASCII.
        text = location.encode("latin-1").decode("utf-8", "replace").strip()
        return urljoin(str(base), text).partition("#")[0]
    except ValueError:
        raise EgressRedirectError("The server sent a redirect to an invalid URL.") from None
