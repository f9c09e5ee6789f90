"""Fetch the HTML of a page without a browser, and decode it."""

from __future__ import annotations

import asyncio
import codecs
import re

from holdfast.egress import EgressClient, EgressError
from holdfast.systems.capture.errors import NotAPageError, build_capture_error, build_status_error
from holdfast.systems.capture.libraries import load_library
from holdfast.systems.capture.page_facts import PageFacts
from holdfast.systems.capture.page_metadata import parse_page_facts

MAX_HTML_BYTES = 5 * 1024 * 1024
HTML_TYPES = ("text/html", "application/xhtml+xml")
# Browsers search for a declaration in the first 1024 bytes. Some pages begin with long comments.
MAX_PRESCAN_BYTES = 4096
MAX_GUESS_BYTES = 64 * 1024
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# Browsers read these labels as their supersets, because servers use them for both.
SUPERSETS = {"iso-8859-1": "cp1252", "latin-1": "cp1252", "us-ascii": "cp1252", "ascii": "cp1252",
             "iso-8859-9": "cp1254", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932",
             "euc-kr": "cp949", "ks_c_5601-1987": "cp949", "utf-16": "utf-16-le"}  # fmt: skip


async def read_page(url: str, *, egress: EgressClient) -> PageFacts:
    """Fetch a page and return its facts. Only the first megabytes of a large page are read.

    Raise NotAPageError for images and other files, and CaptureError for failed requests.
    """
    try:
        async with egress.stream("GET", url, headers={"Accept": "text/html,*/*;q=0.5"}) as response:
            if response.status >= 400:
                raise build_status_error(response.status)
            if response.content_type not in HTML_TYPES:
                raise NotAPageError("The URL is not a web page.", content_type=response.content_type)
            body = bytearray()
            async for chunk in response.iterate_bytes():
                body += chunk
                if len(body) >= MAX_HTML_BYTES:
                    break
            content_type = response.headers.get("content-type", "")
            final_url = response.url
    except EgressError as error:
        raise build_capture_error(error) from error
    return await asyncio.to_thread(
        lambda: parse_page_facts(decode_html(bytes(body[:MAX_HTML_BYTES]), content_type), final_url)
    )


def decode_html(body: bytes, content_type: str = "") -> str:
    """Decode HTML as browsers do: byte order mark, header, declaration in the page, and then a guess."""
    for mark, encoding in BYTE_ORDER_MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(encoding, "replace")
    header = re.search(r"charset\s*=\s*[\"']?([\w.:-]+)", content_type, re.IGNORECASE)
    declared = re.search(
        rb"<meta[^>]{0,500}?charset\s*=\s*[\"']?\s*([\w.:-]+)", body[:MAX_PRESCAN_BYTES], re.IGNORECASE
    )
    labels = [header.group(1) if header else "", declared.group(1).decode("ascii") if declared else ""]
    for label in labels:
        if (supported := _find_encoding(label)) is not None:
            return body.decode(supported, "replace")
    return body.decode(_guess_encoding(body), "replace")


def _find_encoding(label: str) -> str | None:
    encoding = SUPERSETS.get(label.lower(), label.lower())
    try:
        b"x".decode(
            encoding, "replace"
        )  # also fails for codecs that are no character sets, such as zip and rot13
    except (LookupError, ValueError):
        return None
    return encoding or None


def _guess_encoding(body: bytes) -> str:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(body)
    except UnicodeDecodeError:
        pass
    else:
        return "utf-8"
    guess = load_library("charset_normalizer").from_bytes(body[:MAX_GUESS_BYTES]).best()
    return str(guess.encoding) if guess is not None else "cp1252"
