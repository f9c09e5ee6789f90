"""The field `url` of every system: what it accepts, and what the refusal names."""

from __future__ import annotations

import pytest

from holdfast.errors import InvalidError
from holdfast.systems.url_field import MAX_URL_BYTES, parse_url_field


def test_a_url_keeps_its_text_and_gives_its_parts() -> None:
    text, url = parse_url_field("  https://Example.com:8443/a?b=1#c ")
    assert text == "https://Example.com:8443/a?b=1#c"
    assert (url.scheme, url.host, url.port, url.path) == ("https", "example.com", 8443, "/a?b=1")


def test_a_url_of_the_greatest_length_is_accepted() -> None:
    address = "https://example.com/"
    text, _ = parse_url_field(address + "a" * (MAX_URL_BYTES - len(address)))
    assert len(text) == MAX_URL_BYTES
    with pytest.raises(InvalidError, match="longer than 8192 bytes"):
        parse_url_field(text + "a")
    with pytest.raises(InvalidError, match="longer than 8192 bytes"):
        parse_url_field(text[:-1] + "ä")  # two bytes


@pytest.mark.parametrize(
    "value",
    [None, 7, ["https://example.com/"], "", "example.com", "file:///etc/passwd", "javascript:alert(1)",
     "http://user:secret@example.com/", "https://example.com/\x00", "https://example.com/\ud800", "http://"],
)  # fmt: skip
def test_other_values_are_refused_by_name_of_the_field(value: object) -> None:
    with pytest.raises(InvalidError) as refusal:
        parse_url_field(value)
    assert refusal.value.field == "url"
    assert "secret" not in str(refusal.value)
