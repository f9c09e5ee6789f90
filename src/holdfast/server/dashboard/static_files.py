"""The style sheet, the scripts and the icon of the dashboard, read once when it starts."""

from __future__ import annotations

from importlib import resources

_MEDIA_TYPES_BY_SUFFIX = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def load_static_files() -> dict[str, tuple[bytes, str]]:
    """Return the static files as content and media type, by name."""
    folder = resources.files("holdfast.server.dashboard") / "static"
    return {
        file.name: (file.read_bytes(), _MEDIA_TYPES_BY_SUFFIX[file.name[file.name.rindex(".") :]])
        for file in folder.iterdir()
        if file.name.endswith(tuple(_MEDIA_TYPES_BY_SUFFIX))
    }
