"""Check and normalise the URLs of bookmarks. Two URLs with the same normalised form are one bookmark.

The normalised form has the scheme and the host in lower case (an international host in its ASCII form), no
default port, no `.` and `..` segments in its path, `/` as an empty path, and one spelling of each
percent-encoded character. A fragment is removed unless it begins with `#/` or `#!`, which single-page
applications use as a path. Everything else
makes a difference: http and https, `www.`, a final slash, and the query with its order.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from holdfast.systems.url_field import parse_url_field

IMAGE_SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".avif", ".bmp", ".tif", ".tiff", ".ico")
_APPLICATION_FRAGMENT_PREFIXES: Final = ("/", "!")
_PERCENT_ENCODED: Final = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


@dataclass(frozen=True)
class BookmarkUrl:
    """A URL that can be saved. `text` is the URL as the user wrote it, `normalized` its normalised form."""

    text: str
    normalized: str

    @property
    def key(self) -> bytes:
        """The SHA-256 of the normalised form, which is unique among the bookmarks of a user."""
        return hashlib.sha256(self.normalized.encode()).digest()

    @property
    def is_image(self) -> bool:
        """Whether the name in the path is that of an image, which needs no screenshot."""
        path = urlsplit(self.normalized).path.lower()
        return path.endswith(IMAGE_SUFFIXES)


def parse_bookmark_url(value: object) -> BookmarkUrl:
    """Check a URL and normalise it. Raise `InvalidError` (422), which names the reason."""
    text, parsed = parse_url_field(value)
    path, question_mark, query = parsed.path.partition("?")
    path = _remove_dot_segments(_normalize_percent_encoding(path))
    query = question_mark + _normalize_percent_encoding(query) if query else ""
    fragment = urlsplit(text).fragment
    kept_fragment = f"#{fragment}" if fragment.startswith(_APPLICATION_FRAGMENT_PREFIXES) else ""
    return BookmarkUrl(text, f"{parsed.scheme}://{parsed.authority}{path}{query}{kept_fragment}")


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
