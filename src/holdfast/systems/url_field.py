"""Check the field `url` of a request, in the same way in every system."""

from __future__ import annotations

import posixpath
import re
from typing import Final
from urllib.parse import urlsplit

from holdfast.egress import EgressRefusedError, EgressUrl, parse_egress_url
from holdfast.errors import InvalidError

MAX_URL_BYTES: Final = 8192
_APPLICATION_FRAGMENT_PREFIXES: Final = ("/", "!")
_PERCENT_ENCODED: Final = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def parse_url_field(value: object, field: str = "url") -> tuple[str, EgressUrl]:
    """Return the URL as the user wrote it, without spaces around it, and its parts.

    No name server is asked. Raise `InvalidError` (422) for `field`, which names the reason, if the
    value is not a text, is longer than 8192 bytes, or is not a URL that workers may request.
    """
    if not isinstance(value, str):
        raise InvalidError(
            f"{field} must be a text.", fix="Send a URL such as https://example.com/.", field=field
        )
    text = value.strip()
    try:
        too_long = len(text.encode()) > MAX_URL_BYTES
    except UnicodeEncodeError:  # half of a surrogate pair
        raise InvalidError("The URL contains a character that is not valid.", field=field) from None
    if too_long:
        raise InvalidError(f"The URL is longer than {MAX_URL_BYTES} bytes.", field=field)
    try:
        return text, parse_egress_url(text)
    except EgressRefusedError as error:
        raise InvalidError(error.message, fix=error.fix, field=field) from None


def normalize_url(text: str, parsed: EgressUrl) -> str:
    """Return the normalised form of a URL. Two URLs with the same normalised form are one thing to a user.

    The form has the scheme and the host in lower case (an international host in its ASCII form), no default
    port, no `.` and `..` segments in its path, `/` as an empty path, and one spelling of each percent-encoded
    character. A fragment is removed unless it begins with `#/` or `#!`, which single-page applications use as
    a path. Everything else makes a difference: http and https, `www.`, a final slash, and the query with its
    order.
    """
    path, question_mark, query = parsed.path.partition("?")
    path = _remove_dot_segments(_normalize_percent_encoding(path))
    query = question_mark + _normalize_percent_encoding(query) if query else ""
    fragment = urlsplit(text).fragment
    kept_fragment = f"#{fragment}" if fragment.startswith(_APPLICATION_FRAGMENT_PREFIXES) else ""
    return f"{parsed.scheme}://{parsed.authority}{path}{query}{kept_fragment}"


def _normalize_percent_encoding(text: str) -> str:
    """Write each percent-encoded character in one way: `%7e` becomes `~`, and `%2f` becomes `%2F`."""

    def replace(match: re.Match[str]) -> str:
        character = chr(int(match[1], 16))
        return character if character in _UNRESERVED else match[0].upper()

    return _PERCENT_ENCODED.sub(replace, text)


def _remove_dot_segments(path: str) -> str:
    if not any(segment in (".", "..") for segment in path.split("/")):
        return path
    is_folder = path.endswith(("/", "/.", "/.."))
    # A second slash at the beginning has a meaning for files, and none here.
    clean = "/" + posixpath.normpath(path).lstrip("/")
    return f"{clean}/" if is_folder and clean != "/" else clean
