"""Remove the indentation of templates when they are loaded.

Templates are indented, with one element per line. Sent as they are, the spaces would make up half of a page
with a large table. They would also put a text node into empty table cells, which the style sheet hides on
phones with `:empty`. This extension therefore removes the indentation of every line, and the whitespace
directly inside elements where a browser does not show it.

Values keep their whitespace, because they are inserted later. Write `<pre>{{ value }}</pre>` on one line.
"""

from __future__ import annotations

import re

from jinja2.ext import Extension

_COMPACTED_ELEMENTS = (
    "a|b|button|dd|details|div|dl|dt|fieldset|figcaption|figure|form|h1|h2|h3|label|legend|li|nav|ol|option|p"
    "|section|select|small|span|summary|table|tbody|td|th|thead|tr|ul"
)
_INDENTATION_PATTERN = re.compile(r"^[ \t]+", re.MULTILINE)
_AFTER_START_TAG_PATTERN = re.compile(rf"(<(?:{_COMPACTED_ELEMENTS})(?:\s[^<>]*)?>)\n+")
_BEFORE_END_TAG_PATTERN = re.compile(rf"(?<!\n)\n+(</(?:{_COMPACTED_ELEMENTS})>)")


class CompactTemplateExtension(Extension):
    """A Jinja extension that removes indentation from template sources."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        """Return a template source without indentation and without line breaks at element edges."""
        text = _INDENTATION_PATTERN.sub("", source)
        text = _AFTER_START_TAG_PATTERN.sub(r"\1", text)
        return _BEFORE_END_TAG_PATTERN.sub(r"\1", text)
