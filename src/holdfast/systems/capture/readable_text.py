"""Extract the text of a page that people read, without menus, advertisements and comments."""

from __future__ import annotations

from holdfast.systems.capture.libraries import load_library

# The library takes 5 seconds of CPU time for a megabyte of small elements, and a thread cannot be stopped.
MAX_READABLE_HTML_CHARS = 1_000_000
MAX_TEXT_CHARS = 200_000


def extract_readable_text(html: str, url: str) -> str | None:
    """Return the main text of a page, or None if it has none. Call it in a thread: it computes."""
    text = load_library("trafilatura").extract(
        html[:MAX_READABLE_HTML_CHARS], url=url, include_comments=False, include_tables=True
    )
    return str(text)[:MAX_TEXT_CHARS].strip() or None if text else None
