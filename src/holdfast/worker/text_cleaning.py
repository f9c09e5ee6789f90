"""Make any text storable, so that recording it never fails."""

from __future__ import annotations


def clean_text(text: object, max_chars: int) -> str:
    """Convert a value to text of at most `max_chars` characters that PostgreSQL can store.

    NUL and lone surrogates become the replacement character. Text that is cut ends with an ellipsis. An
    object whose `__str__` raises becomes a note that says so.
    """
    try:
        text = text if isinstance(text, str) else str(text)
    except Exception as error:
        text = f"({type(error).__name__} while printing)"
    cut = text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"
    return cut.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
