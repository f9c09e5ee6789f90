"""Built-in templates of the export system, and templates in a folder of the user."""

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
    """Return the paths of all templates by name: built-in, and .typ and .html files in the folder."""
    if folder is None:
        return BUILT_IN_TEMPLATES
    custom = {path.stem: path for path in sorted(folder.iterdir()) if path.suffix in (".typ", ".html")}
    return {**BUILT_IN_TEMPLATES, **custom}
