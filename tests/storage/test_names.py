"""Names in headers and archives: whatever people write, nothing breaks out."""

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
from holdfast.storage.names import ArchiveNames, check_name, disposition, may_be_shown, type_of

ANY = st.text(max_size=300)
NASTY = st.sampled_from(
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
    ]
)
HEADER = re.compile(r"attachment; filename=\"[^\"\\%;/\x00-\x1f\x7f]+\"; filename\*=UTF-8''[A-Za-z0-9%_.~-]*")


@given(ANY | NASTY)
@example("日本.pdf")
def test_a_header_is_one_header(name: str) -> None:
    told = disposition(name)
    assert told.isascii()
    assert HEADER.fullmatch(told)
    clean = "".join(c for c in name if unicodedata.category(c) not in {"Cc", "Cs", "Zl", "Zp"})
    assert unquote(told.split("UTF-8''")[1]) == clean
    message = Message()
    message["content-disposition"] = told
    assert message.get_content_disposition() == "attachment"


def test_the_plain_form_keeps_its_ending() -> None:
    assert 'filename="file.pdf"' in disposition("日本.pdf")
    assert 'filename="Resume_ 1.pdf"' in disposition("Résumé; 1.pdf")
    assert disposition("a.png", inline=True).startswith("inline; ")


@given(st.lists(ANY | NASTY, max_size=30))
def test_archives_unpack_everywhere(names: list[str]) -> None:
    archive_names = ArchiveNames()
    safe = [archive_names.take(name) for name in names]
    assert len(safe) == len(names)
    folded = {unicodedata.normalize("NFKC", name).casefold() for name in safe} | {"manifest.json"}
    assert len(folded) == len(names) + 1
    for name in safe:
        assert name == name.strip()
        assert 0 < len(name.encode()) <= 255
        assert not name.startswith((".", "/"))
        assert not name.endswith(".")
        assert not re.search(r'[/\\:*?"<>|\x00-\x1f\x7f]', name)
        assert not re.fullmatch(r"(?i)(con|prn|aux|nul|com\d|lpt\d)", name.partition(".")[0].strip())
    with zipfile.ZipFile(io.BytesIO(), "w") as archive:
        for name in safe:
            archive.writestr(name, b"")
        assert archive.namelist() == safe


@given(NASTY)
def test_names_that_may_be_saved(name: str) -> None:
    wrong = re.search(r"[/\\\x00-\x1f\x7f\ud800-\udfff]", name)
    if wrong or name in {"", ".", ".."} or len(name) > 255:
        with pytest.raises(InvalidError):
            check_name(name)
    else:
        assert check_name(name) == name


def test_types() -> None:
    assert type_of("a.png", None) == "image/png"
    assert type_of("a", None) == "application/octet-stream"
    assert type_of("a.png", "text/x") == "text/x"
    for shown in ("image/png", "application/pdf", "text/plain; charset=utf-8", "audio/mpeg"):
        assert may_be_shown(shown)
    for saved in (
        "text/html",
        "image/svg+xml",
        "application/xhtml+xml",
        "text/javascript",
        "application/zip",
    ):
        assert not may_be_shown(saved)
