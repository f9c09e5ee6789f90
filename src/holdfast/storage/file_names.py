"""File names: validation, content types, `Content-Disposition` headers and unique names in ZIP archives.

The name that a user chooses is kept unchanged and is never used as a path. Headers and archives use a
sanitized form of it that every client reads the same way.
"""

from __future__ import annotations

import mimetypes
import re
import unicodedata
from urllib.parse import quote

from holdfast.errors import InvalidError

MAX_FILE_NAME_CHARS = 255
# An entry leaves room for a number, because file systems accept at most 255 bytes.
MAX_ZIP_ENTRY_NAME_BYTES = 200
MAX_KEPT_EXTENSION_CHARS = 20
# Content types that browsers display and that cannot run scripts.
INLINE_CONTENT_TYPES = {"application/pdf", "text/plain", "text/csv", "application/json"}
_INLINE_TYPE_FAMILIES = {"image", "audio", "video"}
_WINDOWS_DEVICE_NAME = re.compile(
    r"(con|prn|aux|nul|clock\$|conin\$|conout\$|(com|lpt)[0-9\u00b9\u00b2\u00b3])", re.IGNORECASE
)
# Control characters, unpaired surrogates, and line and paragraph separators.
_CONTROL_CATEGORIES = {"Cc", "Cs", "Zl", "Zp"}
# They change the direction of the text around them: U+202E shows `txt.exe` as `exe.txt`. Other formatting
# characters stay, because some scripts need them inside words.
_DIRECTION_MARKS = frozenset("\u061c\u200e\u200f")
_DIRECTION_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def check_file_name(name: object) -> str:
    """Return a valid file name unchanged, otherwise raise InvalidError.

    The database checks names as well. This check also catches names that cannot be sent to the database.
    """
    if not isinstance(name, str):
        raise InvalidError(f"The file name must be text, not {type(name).__name__}.", field="name")
    unsafe = any(c in _DIRECTION_CONTROLS or unicodedata.category(c) in _CONTROL_CATEGORIES for c in name)
    valid_length = 1 <= len(name) <= MAX_FILE_NAME_CHARS
    if unsafe or not valid_length or re.search(r"[/\\]", name) or name in {".", ".."}:
        raise InvalidError(
            f"The file name {name[:60]!r} is not valid: it must have 1 to {MAX_FILE_NAME_CHARS} characters "
            "and no slashes, control characters or characters that change the direction of text.",
            fix="Pass only the name of the file. Owner, job and kind determine its folder.",
            field="name",
        )
    return name


def resolve_content_type(name: str, declared: str | None) -> str:
    """Return the declared content type, otherwise guess it from the extension of the name."""
    return declared or mimetypes.guess_type(name)[0] or "application/octet-stream"


def is_safe_inline_type(content_type: str) -> bool:
    """Return whether browsers may display this content type on our site without a security risk."""
    media_type = content_type.partition(";")[0].strip().lower()
    family = media_type.partition("/")[0]
    return media_type in INLINE_CONTENT_TYPES or (family in _INLINE_TYPE_FAMILIES and "xml" not in media_type)


def format_content_disposition(name: str, *, inline: bool = False) -> str:
    """Format a `Content-Disposition` header (RFC 6266).

    The header carries an ASCII name, which every client understands, and the complete name in UTF-8.
    """
    hidden = _DIRECTION_CONTROLS | _DIRECTION_MARKS
    clean = "".join(c for c in name if c not in hidden and unicodedata.category(c) not in _CONTROL_CATEGORIES)
    ascii_name = unicodedata.normalize("NFKD", clean).encode("ascii", "ignore").decode()
    ascii_name = re.sub(r'["\\%/;]', "_", ascii_name).strip().rstrip(".")
    ascii_name = "file" + ascii_name if not ascii_name or ascii_name.startswith(".") else ascii_name
    mode = "inline" if inline else "attachment"
    return f"{mode}; filename=\"{ascii_name}\"; filename*=UTF-8''{quote(clean, safe='')}"


class ZipEntryNames:
    """The unique entry names of one ZIP archive. All names are valid on every operating system.

    No name contains a folder or is a Windows device, and no two are equal on a case-insensitive file system.
    """

    def __init__(self) -> None:
        self._used = {_fold_case("manifest.json")}

    def reserve_name(self, name: str) -> str:
        """Reserve and return a valid, unique entry name for a file: `a.txt`, then `a (2).txt`."""
        safe = _sanitize_zip_entry_name(name)
        stem, dot, extension = safe.rpartition(".")
        stem, dot, extension = (stem, dot, extension) if stem else (safe, "", "")
        candidate, number = safe, 1
        while _fold_case(candidate) in self._used:
            number += 1
            candidate = f"{stem} ({number}){dot}{extension}"
        self._used.add(_fold_case(candidate))
        return candidate


def _sanitize_zip_entry_name(name: str) -> str:
    text = unicodedata.normalize("NFC", name).encode("utf-8", "replace").decode()
    text = "".join(
        "_" if unicodedata.category(character) in _CONTROL_CATEGORIES | {"Cf"} else character
        for character in text
    )
    text = _strip_dots_and_spaces(re.sub(r'[/\\:*?"<>|]', "_", text)) or "file"
    if text.startswith("."):
        text = "_" + text.lstrip(".")
    stem, dot, extension = text.rpartition(".")
    if _WINDOWS_DEVICE_NAME.fullmatch(text.partition(".")[0].strip()):
        return _sanitize_zip_entry_name("_" + text)
    while len(text.encode()) > MAX_ZIP_ENTRY_NAME_BYTES:
        stem = (stem or text)[:-1]
        text = f"{stem}{dot}{extension}" if dot and len(extension) <= MAX_KEPT_EXTENSION_CHARS else stem
    return _strip_dots_and_spaces(text) or "file"


def _strip_dots_and_spaces(text: str) -> str:
    """Remove spaces at both ends, and dots at the end. Windows drops both from the end of a name."""
    while text != (stripped := text.strip().rstrip(".")):
        text = stripped
    return text


def _fold_case(name: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
