"""The templates that come with the system. A user's own are files beside them: see docs/guide/exports.md."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
TEMPLATES: Final[dict[str, Path]] = {
    "minimal": FOLDER / "minimal.typ",
    "classic": FOLDER / "classic.typ",
    "modern": FOLDER / "modern.typ",
    "paper": FOLDER / "paper.html",
}
DEFAULT: Final = "minimal"


def templates_in(folder: Path | None) -> dict[str, Path]:
    """Those that come with the system and the user's own: files .typ and .html, by their names."""
    if folder is None:
        return TEMPLATES
    own = {path.stem: path for path in sorted(folder.iterdir()) if path.suffix in (".typ", ".html")}
    return {**TEMPLATES, **own}
