"""Names of files: which may be saved, how they stand in a header, and how in an archive.

What people call a file is kept as it is and never used as a path. Headers and archives get a form of it that
no reader can take for something else.
"""

from __future__ import annotations

import mimetypes
import re
import unicodedata
from urllib.parse import quote

from holdfast.errors import InvalidError

MOST_CHARACTERS = 255
# Shown by browsers as they are and unable to run anything.
SHOWN = {"application/pdf", "text/plain", "text/csv", "application/json"}
_SHOWN_FAMILIES = {"image", "audio", "video"}
_RESERVED = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9\u00b9\u00b2\u00b3])", re.IGNORECASE)


def check_name(name: object) -> str:
    """The engine checks again; what it could not even be sent is caught here."""
    if not isinstance(name, str):
        raise InvalidError(f"A file name must be text, got {type(name).__name__}.", field="name")
    unsafe = any(unicodedata.category(each) in {"Cc", "Cs"} for each in name)
    if unsafe or not 1 <= len(name) <= MOST_CHARACTERS or re.search(r"[/\\]", name) or name in {".", ".."}:
        raise InvalidError(
            f"A file name must be 1 to {MOST_CHARACTERS} characters without slashes or control characters, "
            f"got {name[:60]!r}.",
            fix="Name the file only; its folder comes from owner, job and kind.",
            field="name",
        )
    return name


def type_of(name: str, given: str | None) -> str:
    return given or mimetypes.guess_type(name)[0] or "application/octet-stream"


def may_be_shown(content_type: str) -> bool:
    """Whether a browser may show it in a page of ours instead of saving it."""
    plain = content_type.partition(";")[0].strip().lower()
    return plain in SHOWN or (plain.partition("/")[0] in _SHOWN_FAMILIES and "xml" not in plain)


def disposition(name: str, *, inline: bool = False) -> str:
    """RFC 6266: a form in ASCII that every reader takes, and the name itself for those that know better."""
    clean = "".join(each for each in name if unicodedata.category(each) not in {"Cc", "Cs", "Zl", "Zp"})
    plain = unicodedata.normalize("NFKD", clean).encode("ascii", "ignore").decode()
    plain = re.sub(r'["\\%/;]', "_", plain).strip().rstrip(".")
    plain = "file" + plain if not plain or plain.startswith(".") else plain
    kind = "inline" if inline else "attachment"
    return f"{kind}; filename=\"{plain}\"; filename*=UTF-8''{quote(clean, safe='')}"


class ArchiveNames:
    """One safe and unique name for each file: no folder, no device, no two alike on a case-blind disk."""

    def __init__(self) -> None:
        self._taken = {_folded("manifest.json")}

    def take(self, name: str) -> str:
        safe = _safe(name)
        stem, dot, ending = safe.rpartition(".")
        stem, dot, ending = (stem, dot, ending) if stem else (safe, "", "")
        candidate, number = safe, 1
        while _folded(candidate) in self._taken:
            number += 1
            candidate = f"{stem} ({number}){dot}{ending}"
        self._taken.add(_folded(candidate))
        return candidate


def _safe(name: str) -> str:
    text = unicodedata.normalize("NFC", name).encode("utf-8", "replace").decode()
    text = "".join("_" if unicodedata.category(each) in {"Cc", "Cs", "Cf"} else each for each in text)
    text = re.sub(r'[/\\:*?"<>|]', "_", text).strip().rstrip(".").strip() or "file"
    if text.startswith("."):
        text = "_" + text.lstrip(".")
    stem, dot, ending = text.rpartition(".")
    if _RESERVED.fullmatch(text.partition(".")[0].strip()):
        return _safe("_" + text)
    while len(text.encode()) > 200:  # room for a number, on file systems that take 255 bytes
        stem = (stem or text)[:-1]
        text = f"{stem}{dot}{ending}" if dot and len(ending) <= 20 else stem
    return text


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
