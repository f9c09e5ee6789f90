"""Check and normalise the URLs of bookmarks. Two URLs with the same normalised form are one bookmark.

`url_field.normalize_url` says what the normalised form is.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from holdfast.systems.url_field import normalize_url, parse_url_field

IMAGE_SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".avif", ".bmp", ".tif", ".tiff", ".ico")


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
    return BookmarkUrl(text, normalize_url(text, parsed))
