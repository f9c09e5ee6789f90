"""File names in headers and archives: no name breaks out of its header or its folder."""

from __future__ import annotations

import io
import re
import unicodedata
import zipfile
from email.message import Message
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.errors import InvalidError
from holdfast.storage.file_names import (
    ZipEntryNames,
    check_file_name,
    format_content_disposition,
    is_safe_inline_type,
    resolve_content_type,
)

ANY_NAME = st.text(max_size=300)
DANGEROUS_NAME = st.sampled_from(
    [
        *[
            "..",
            ".",
            "",
            "/",
            "a/b",
            "..\\x",
            "C:\\x",
            "CON",
            "con.txt",
            "nul",
            "LPT1.x",
            "a ",
            "a.",
            "A",
            "a",
        ],
        *["ä", "a\u0308", "x\r\nSet-Cookie: a=b", 'q"uo\\te;', "%2e%2e", "\u202egnp.exe", "\0", "\ud800"],
        *["ß", "SS", "\ufb01", "fi", ".htaccess", "manifest.json", "MANIFEST.json", "x" * 400 + ".pdf"],
        *["日" * 200, "COM\u00b9", "aux ", "a:b", "~", "-rf"],
        *[
            "CLOCK$",
            "clock$.txt",
            "x. .",
            "x . . ",
            "a\u2028b",
            "a\u2029b",
            "\u2066x\u2069.exe",
            "x" * 199 + " .",
        ],
    ]
)
DIRECTION_CONTROLS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
DISPOSITION_HEADER = re.compile(
    r"attachment; filename=\"[^\"\\%;/\x00-\x1f\x7f]+\"; filename\*=UTF-8''[A-Za-z0-9%_.~-]*"
)


@given(ANY_NAME | DANGEROUS_NAME)
@example("日本.pdf")
def test_disposition_is_one_valid_header(name: str) -> None:
    header = format_content_disposition(name)
    assert header.isascii()
    assert DISPOSITION_HEADER.fullmatch(header)
    clean = "".join(
        c
        for c in name
        if unicodedata.category(c) not in {"Cc", "Cs", "Zl", "Zp"} and c not in DIRECTION_CONTROLS
    )
    assert unquote(header.split("UTF-8''")[1]) == clean
    message = Message()
    message["content-disposition"] = header
    assert message.get_content_disposition() == "attachment"


def test_ascii_name_keeps_its_extension() -> None:
    assert 'filename="file.pdf"' in format_content_disposition("日本.pdf")
    assert 'filename="Resume_ 1.pdf"' in format_content_disposition("Résumé; 1.pdf")
    assert format_content_disposition("a.png", inline=True).startswith("inline; ")


@given(st.lists(ANY_NAME | DANGEROUS_NAME, max_size=30))
def test_archive_names_are_safe_and_unique(names: list[str]) -> None:
    archive_names = ZipEntryNames()
    safe = [archive_names.reserve_name(name) for name in names]
    assert len(safe) == len(names)
    folded = {unicodedata.normalize("NFKC", name).casefold() for name in safe} | {"manifest.json"}
    assert len(folded) == len(names) + 1
    for name in safe:
        assert name == name.strip()
        assert 0 < len(name.encode()) <= 255
        assert not name.startswith((".", "/"))
        assert not name.endswith((".", " "))
        assert not any(unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"} for c in name)
        assert not re.search(r'[/\\:*?"<>|\x00-\x1f\x7f]', name)
        assert not re.fullmatch(r"(?i)(con|prn|aux|nul|clock\$|com\d|lpt\d)", name.partition(".")[0].strip())
    with zipfile.ZipFile(io.BytesIO(), "w") as archive:
        for name in safe:
            archive.writestr(name, b"")
        assert archive.namelist() == safe


@given(DANGEROUS_NAME)
def test_check_file_name(name: str) -> None:
    forbidden = re.search(r"[/\\\x00-\x1f\x7f\ud800-\udfff\u2028-\u202e\u2066-\u2069]", name)
    if forbidden or name in {"", ".", ".."} or len(name) > 255:
        with pytest.raises(InvalidError):
            check_file_name(name)
    else:
        assert check_file_name(name) == name


def test_content_types() -> None:
    assert resolve_content_type("a.png", None) == "image/png"
    assert resolve_content_type("a", None) == "application/octet-stream"
    assert resolve_content_type("a.png", "text/x") == "text/x"
    for inline in ("image/png", "application/pdf", "text/plain; charset=utf-8", "audio/mpeg"):
        assert is_safe_inline_type(inline)
    for attachment in (
        "text/html",
        "image/svg+xml",
        "application/xhtml+xml",
        "text/javascript",
        "application/zip",
    ):
        assert not is_safe_inline_type(attachment)
