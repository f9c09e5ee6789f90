"""Parse URLs and hosts in one notation only, so that the check and the connection see the same host.

Browsers and C libraries accept many notations of an address: 2130706433, 0x7f.1, 0177.0.0.1, full-width
digits, percent-encoded letters, zone ids. A host that ends in a number must be four decimal numbers here,
names are converted to their ASCII form first, and everything else is refused.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlsplit

from holdfast.egress.errors import EgressRefusedError

MAX_URL_CHARS: Final = 8192
DEFAULT_PORT_BY_SCHEME: Final = {"http": 80, "https": 443}
_HOST_PATTERN: Final = re.compile(r"(?!.{254})[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*", re.ASCII)
_NUMERIC_LABEL_PATTERN: Final = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_PATH_CHARS: Final = "!$%&'()*+,;=:@/?~-._[]"


@dataclass(frozen=True)
class EgressUrl:
    """A valid URL, before its host name is resolved. `path` includes the query.

    >>> from holdfast.egress import EgressUrl, parse_egress_url
    >>> url: EgressUrl = parse_egress_url("https://example.com/hook?a=1")
    >>> url.host, url.port, url.path
    ('example.com', 443, '/hook?a=1')
    """

    scheme: str
    host: str
    port: int
    path: str

    @property
    def secure(self) -> bool:
        """Return whether the URL uses TLS."""
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """Return the host and the port as in the header Host: brackets for IPv6, no default port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORT_BY_SCHEME.get(self.scheme) else f"{host}:{self.port}"

    @property
    def origin(self) -> tuple[str, str, int]:
        """Return scheme, host and port. Credentials are not sent from one origin to another."""
        return (self.scheme, self.host, self.port)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


def parse_egress_url(url: str) -> EgressUrl:
    """Parse a URL. Raise EgressRefusedError if requests to it are never allowed.

    >>> from holdfast.egress import parse_egress_url
    >>> parse_egress_url("http://EXAMPLE.com.").host
    'example.com'
    """
    if len(url) > MAX_URL_CHARS:
        raise EgressRefusedError(f"The URL is longer than {MAX_URL_CHARS} characters.", field="url")
    if any(ord(c) <= 32 or ord(c) == 127 for c in url):
        raise EgressRefusedError("The URL contains a space or a control character.", field="url")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise EgressRefusedError(
            "The URL is not valid.", fix="Write https://host/path.", field="url"
        ) from None
    if parts.scheme not in DEFAULT_PORT_BY_SCHEME or not host:
        raise EgressRefusedError("The URL must begin with http:// or https://.", field="url")
    if "@" in parts.netloc or "\\" in url.partition("?")[0]:
        raise EgressRefusedError(
            "The URL must not contain a user name, a password or a backslash.", field="url"
        )
    if port == 0:
        raise EgressRefusedError("The port of the URL must be between 1 and 65535.", field="url")
    path = quote(parts.path or "/", safe=_PATH_CHARS)
    query = f"?{quote(parts.query, safe=_PATH_CHARS)}" if parts.query else ""
    port = port or DEFAULT_PORT_BY_SCHEME[parts.scheme]
    return EgressUrl(parts.scheme, normalize_host(host), port, path + query)


def parse_authority(text: str) -> tuple[str, int]:
    """Parse `host:port`, the target of a CONNECT request. Raise EgressRefusedError if it is not valid."""
    host, separator, port = text.rpartition(":")
    if not separator or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) <= 65535:
        raise EgressRefusedError("The target must be host:port.")
    if host.startswith("[") and host.endswith("]"):
        address = host[1:-1]
        if ":" not in address:
            raise EgressRefusedError("The target must be host:port.")
        return normalize_host(address), int(port)
    if ":" in host:
        raise EgressRefusedError("The target must have an IPv6 address in brackets.")
    return normalize_host(host), int(port)


def normalize_host(host: str) -> str:
    """Return the one notation of a host: an ASCII name in lower case, or an IP address without brackets."""
    if "%" in host:  # a zone id, or percent-encoded characters
        raise EgressRefusedError("The host of the URL must not contain a percent sign.", field="url")
    if ":" in host:
        return _normalize_ipv6(host)
    name = (host.lower() if host.isascii() else _convert_to_ascii(host)).removesuffix(".")
    if not _HOST_PATTERN.fullmatch(name):
        raise EgressRefusedError("The host of the URL is not valid.", field="url")
    if _NUMERIC_LABEL_PATTERN.fullmatch(name.rpartition(".")[2]):
        return _normalize_ipv4(name)
    return name


def parse_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address of a normalized host, or None if it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _normalize_ipv6(host: str) -> str:
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        raise EgressRefusedError("The IPv6 address of the URL is not valid.", field="url") from None
    return str(address.ipv4_mapped or address)


def _normalize_ipv4(host: str) -> str:
    try:
        return str(ipaddress.IPv4Address(host))
    except ValueError:
        raise EgressRefusedError(
            "The host of the URL is not a valid IPv4 address.", fix="Write four decimal numbers.", field="url"
        ) from None


def _convert_to_ascii(host: str) -> str:
    import idna  # noqa: PLC0415  (loads large tables, which only international names need)

    try:
        return idna.encode(host, uts46=True).decode("ascii").lower()
    except (idna.IDNAError, UnicodeError):
        raise EgressRefusedError(
            "The host of the URL is not a valid international name.", field="url"
        ) from None
