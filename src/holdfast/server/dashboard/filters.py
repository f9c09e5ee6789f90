"""Template filters and functions: `holdfast.formatting` for HTML, with an en dash for a missing value."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import msgspec
from markupsafe import Markup, escape

from holdfast import formatting
from holdfast.formatting import (
    describe_count,
    format_count,
    format_relative_time,
    parse_iso_time_or_none,
    shorten_id,
    truncate_text,
)
from holdfast.search import quote_search_value

MISSING_VALUE_TEXT = "\N{EN DASH}"

format_number = partial(formatting.format_number, missing=MISSING_VALUE_TEXT)
format_compact_number = partial(formatting.format_compact_number, missing=MISSING_VALUE_TEXT)
format_bounded_count = partial(formatting.format_bounded_count, missing=MISSING_VALUE_TEXT)
format_duration = partial(formatting.format_duration, missing=MISSING_VALUE_TEXT)
format_size = partial(formatting.format_size, missing=MISSING_VALUE_TEXT)


def render_time(value: Any, now: datetime, *, style: str = "relative") -> Markup:
    """Render a time as HTML: relative to now, or absolute in UTC or in the time zone of the reader.

    The script of the page updates relative times every second, adds the local time to the tooltip, and turns
    the style `local` into the time zone of the reader, which the server does not know.
    """
    at = parse_iso_time_or_none(value)
    if at is None:
        return Markup('<span class="muted">{}</span>').format(MISSING_VALUE_TEXT)
    exact = at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    at_iso = at.astimezone(UTC).isoformat()
    if style == "utc":
        return Markup('<time datetime="{}" title="{}">{}</time>').format(at_iso, exact, exact[:19])
    if style == "local":
        return Markup('<time datetime="{}" title="{}" data-local>{}</time>').format(at_iso, exact, exact[:19])
    relative = format_relative_time((at - now).total_seconds())
    return Markup('<time datetime="{}" title="{}" data-relative>{}</time>').format(at_iso, exact, relative)


def format_json(value: Any) -> str:
    """Format a value as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def format_json_preview(value: Any, max_chars: int = 160) -> str:
    """Format a value as JSON on one line, shortened to `max_chars` characters."""
    return truncate_text(value if isinstance(value, str) else msgspec.json.encode(value).decode(), max_chars)


def render_external_link(value: str | None) -> Markup:
    """Render a web URL as an HTML link, and any other value, such as a `javascript:` URL, as text."""
    if value and value.startswith(("https://", "http://")):
        return Markup('<a href="{}" rel="noreferrer noopener" target="_blank">{}</a>').format(
            value, truncate_text(value, 60)
        )
    return escape(value or "")


TEMPLATE_FILTERS: Final[dict[str, Callable[..., Any]]] = {
    "number": format_number,
    "compact_number": format_compact_number,
    "bounded_count": format_bounded_count,
    "described_count": describe_count,
    "count_of": format_count,
    "duration": format_duration,
    "file_size": format_size,
    "short_id": shorten_id,
    "shorten": truncate_text,
    "pretty_json": format_json,
    "json_preview": format_json_preview,
    "external_link": render_external_link,
    "search_quoted": quote_search_value,
}
