"""The errors of outgoing requests. Each class is one reason, so that callers can decide whether to retry.

    EgressError                    any failure of an outgoing request
    ├── EgressRefusedError         the policy does not allow the URL, the address or the port
    ├── EgressDnsError             the host name could not be resolved
    ├── EgressConnectError         no connection, or the connection broke
    ├── EgressTlsError             the certificate or the TLS handshake is not valid
    ├── EgressTimeoutError         a time limit of the policy passed
    ├── EgressTooLargeError        a body is larger than the policy allows, or a decompression bomb
    ├── EgressContentTypeError     the response has a content type that the policy does not allow
    ├── EgressRedirectError        too many redirects, or a redirect that cannot be followed
    └── EgressResponseError        the server did not send a valid HTTP response

The messages contain no address of the local network, because they may be shown to the user who chose the URL.
"""

from __future__ import annotations

from typing import ClassVar

from holdfast.errors import HoldfastError, RefusedError


class EgressError(HoldfastError):
    """An outgoing request failed. `reason` is a short code, `retryable` tells whether a retry can help.

    >>> from holdfast.egress import EgressError, EgressTimeoutError
    >>> try:
    ...     raise EgressTimeoutError("The server did not respond in time.")
    ... except EgressError as error:
    ...     print(error.reason, error.retryable)
    timeout True
    """

    reason: ClassVar[str] = "failed"
    retryable: ClassVar[bool] = True


class EgressRefusedError(EgressError, RefusedError):
    """The policy does not allow the URL, its address or its port. No request was sent."""

    reason = "refused"
    retryable = False


class EgressDnsError(EgressError):
    """The host name of a URL could not be resolved."""

    reason = "dns"


class EgressConnectError(EgressError):
    """The server could not be reached, or the connection broke."""

    reason = "connect"


class EgressTlsError(EgressError):
    """The certificate of the server is not valid for the host, or the TLS handshake failed."""

    reason = "tls"
    retryable = False


class EgressTimeoutError(EgressError):
    """A time limit of the policy passed before the response was complete."""

    reason = "timeout"


class EgressTooLargeError(EgressError):
    """A body is larger than the policy allows, or expands too much when it is decompressed."""

    reason = "too_large"
    retryable = False


class EgressContentTypeError(EgressError):
    """The response has a content type that the policy does not allow."""

    reason = "content_type"
    retryable = False


class EgressRedirectError(EgressError):
    """The server sent more redirects than the policy allows, or one that cannot be followed."""

    reason = "redirects"
    retryable = False


class EgressResponseError(EgressError):
    """The server did not send a valid HTTP response, or ended it early."""

    reason = "response"
