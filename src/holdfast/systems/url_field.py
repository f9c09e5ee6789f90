"""Check the field `url` of a request, in the same way in every system."""

from __future__ import annotations

from typing import Final

from holdfast.egress import EgressRefusedError, EgressUrl, parse_egress_url
from holdfast.errors import InvalidError

MAX_URL_BYTES: Final = 8192


def parse_url_field(value: object) -> tuple[str, EgressUrl]:
    """Return the URL as the user wrote it, without spaces around it, and its parts.

    No name server is asked. Raise `InvalidError` (422) for the field `url`, which names the reason, if the
    value is not a text, is longer than 8192 bytes, or is not a URL that workers may request.
    """
    if not isinstance(value, str):
        raise InvalidError("url must be a text.", fix="Send a URL such as https://example.com/.", field="url")
    text = value.strip()
    try:
        too_long = len(text.encode()) > MAX_URL_BYTES
    except UnicodeEncodeError:  # half of a surrogate pair
        raise InvalidError("The URL contains a character that is not valid.", field="url") from None
    if too_long:
        raise InvalidError(f"The URL is longer than {MAX_URL_BYTES} bytes.", field="url")
    try:
        return text, parse_egress_url(text)
    except EgressRefusedError as error:
        raise InvalidError(error.message, fix=error.fix, field="url") from None
