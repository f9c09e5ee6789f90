"""The templates of the export system. Users can add their own: see docs/guide/exports.md."""

from __future__ import annotations

from pathlib import Path
from typing import Final

TEMPLATE_FOLDER: Final = Path(__file__).parent
BUILT_IN_TEMPLATES: Final[dict[str, Path]] = {
    "minimal": TEMPLATE_FOLDER / "minimal.typ",
    "classic": TEMPLATE_FOLDER / "classic.typ",
    "modern": TEMPLATE_FOLDER / "modern.typ",
    "paper": TEMPLATE_FOLDER / "paper.html",
}
DEFAULT_TEMPLATE: Final = "minimal"


def read_template_paths(folder: Path | None) -> dict[str, Path]:
    """Return the built-in templates and the .typ and .html files in the user's folder, by name."""
    if folder is None:
        return BUILT_IN_TEMPLATES
    custom = {path.stem: path for path in sorted(folder.iterdir()) if path.suffix in (".typ", ".html")}
    return {**BUILT_IN_TEMPLATES, **custom}
