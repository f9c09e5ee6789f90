"""Reach URLs that users chose, without giving them access to private networks (SSRF).

`EgressPolicy` says what may be reached and sets the limits. `EgressClient` is an HTTP client that follows it.
`GuardedProxy` is a local proxy that follows it, for programs such as Chromium, curl, ffmpeg and yt-dlp.
No setting turns the checks off. `EgressAllowlist` permits single hosts and private networks.
"""

from holdfast.egress.addresses import IpAddress, is_public_address
from holdfast.egress.allowlist import EgressAllowlist
from holdfast.egress.chromium_arguments import chromium_arguments
from holdfast.egress.client import EgressClient, EgressResponse, EgressStream, request_blocking
from holdfast.egress.errors import (
    EgressConnectError,
    EgressContentTypeError,
    EgressDnsError,
    EgressError,
    EgressRedirectError,
    EgressRefusedError,
    EgressResponseError,
    EgressTimeoutError,
    EgressTlsError,
    EgressTooLargeError,
)
from holdfast.egress.policy import EgressPolicy
from holdfast.egress.proxy import GuardedProxy
from holdfast.egress.proxy_state import ProxyLimits, ProxyRefusal
from holdfast.egress.urls import EgressUrl, parse_egress_url

__all__ = [
    "EgressAllowlist",
    "EgressClient",
    "EgressConnectError",
    "EgressContentTypeError",
    "EgressDnsError",
    "EgressError",
    "EgressPolicy",
    "EgressRedirectError",
    "EgressRefusedError",
    "EgressResponse",
    "EgressResponseError",
    "EgressStream",
    "EgressTimeoutError",
    "EgressTlsError",
    "EgressTooLargeError",
    "EgressUrl",
    "GuardedProxy",
    "IpAddress",
    "ProxyLimits",
    "ProxyRefusal",
    "chromium_arguments",
    "is_public_address",
    "parse_egress_url",
    "request_blocking",
]
