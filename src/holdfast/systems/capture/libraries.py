"""Import the libraries of the extra `bookmarks` at their first use."""

from __future__ import annotations

import importlib
from typing import Any

from holdfast.errors import RefusedError


def load_library(name: str) -> Any:
    """Import a library. If it is missing, raise RefusedError with the command that installs it.

    The libraries are large, and most of them have no types.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = (error.name or name).partition(".")[0]
        raise RefusedError(
            f"Captures need the package {package}, which is not installed or cannot be loaded.",
            fix="pip install 'holdfast[bookmarks]'",
        ) from error
