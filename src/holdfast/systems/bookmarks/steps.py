"""The two steps that complete a bookmark: the screenshot of its page, and its image, text and icon.

A step fetches first, then stores its files with a short lifetime, and then, in one transaction, writes the
row and keeps the files. A worker that dies at any point leaves a row without the step and files that expire.
"""

from __future__ import annotations

import logging
import mimetypes
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from holdfast import Artifact, Client, PublicError
from holdfast.egress import EgressError
from holdfast.errors import QuotaExceededError
from holdfast.systems.bookmarks import processing_queries as queries
from holdfast.systems.bookmarks.capture_port import BookmarkCapture, FetchedImage, PageSource
from holdfast.systems.bookmarks.processing_queries import BookmarkState, StepFiles, StepName, StepValues
from holdfast.systems.capture.errors import NotAPageError
from holdfast.systems.providers import UsageAccount

FILE_KIND: Final = "bookmarks"
UNCOMMITTED_FILE_TTL: Final = timedelta(hours=1)
HIDDEN_STEP_ERROR: Final = "Something went wrong while working on this."
MAX_CHARS_BY_COLUMN: Final = {
    "title": 1_000,
    "description": 5_000,
    "page_text": 200_000,
    "og_image_url": 8_000,
    "ocr": 50_000,
    "caption": 5_000,
}
MAX_FAVICON_URLS: Final = 20
MAX_ICON_URL_CHARS: Final = 8_000
_log = logging.getLogger("holdfast.systems.bookmarks")


@dataclass(frozen=True)
class StepOutcome:
    """How a step ended. `error` is written for users; `retry` says whether another attempt can help."""

    succeeded: bool
    error: str | None = None
    retry: bool = True


STEP_SUCCEEDED: Final = StepOutcome(succeeded=True)


class BookmarkSteps:
    """Runs the steps of bookmarks and stores their results."""

    def __init__(self, client: Client, capture: BookmarkCapture, schema: str) -> None:
        self._client = client
        self._capture = capture
        self._schema = schema

    async def take_screenshot(self, state: BookmarkState, url: str) -> StepOutcome:
        """Store the screenshot of the page, its title and description, and what the other step needs."""
        return await self._run_step("screenshot", state, self._collect_screenshot(state, url))

    async def collect_remaining_data(
        self, state: BookmarkState, url: str, favicon_url: str | None
    ) -> StepOutcome:
        """Store the image of the page with its blurhash, size, text and caption, and the icon."""
        return await self._run_step("remaining", state, self._collect_remaining(state, url, favicon_url))

    async def _run_step(self, step: StepName, state: BookmarkState, collecting: Any) -> StepOutcome:
        try:
            async with self._client.connection() as connection:
                await queries.set_step_status(connection, self._schema, state.id, step, "running")
            values, files = await collecting
            async with self._client.transaction() as connection:
                await queries.save_step_result(
                    connection, self._schema, state, step, clean_values(values), files
                )
        except NotAPageError as error:
            if step != "screenshot" or not error.content_type.startswith("image/"):
                return await self._record_failure(step, state, error)
            async with self._client.connection() as connection:
                await queries.mark_as_image(connection, self._schema, state.id)
        except Exception as error:  # whatever it is, the other step still runs
            return await self._record_failure(step, state, error)
        finally:
            collecting.close()  # if the step never started
        return STEP_SUCCEEDED

    async def _record_failure(self, step: StepName, state: BookmarkState, error: Exception) -> StepOutcome:
        outcome = describe_step_error(error)
        if outcome.error == HIDDEN_STEP_ERROR:
            _log.error("The step %s of bookmark %s failed.", step, state.id, exc_info=error)
        async with self._client.connection() as connection:
            await queries.set_step_status(connection, self._schema, state.id, step, "failed", outcome.error)
        return outcome

    async def _collect_screenshot(self, state: BookmarkState, url: str) -> tuple[StepValues, StepFiles]:
        page = await self._capture.capture_page(url)
        values = await self._collect_page_values(page, url)
        screenshot = await self._save_file(state, "screenshot", page.screenshot, page.screenshot_type)
        return values, {"screenshot": screenshot}

    async def _collect_page_values(self, page: PageSource, url: str) -> StepValues:
        values: StepValues = {
            "og_image_url": page.og_image_url,
            "favicon_urls": [
                clean_text(each, MAX_ICON_URL_CHARS)
                for each in (await self._capture.list_icon_urls(page))[:MAX_FAVICON_URLS]
            ],
            "page_text": await self._capture.extract_text(page, url),
        }
        # A page without a title keeps what the bookmark has.
        described = {"title": page.title, "description": page.description}
        return values | {name: value for name, value in described.items() if value}

    async def _collect_remaining(
        self, state: BookmarkState, url: str, favicon_url: str | None
    ) -> tuple[StepValues, StepFiles]:
        values: StepValues = {}
        files: StepFiles = {}
        image_url, icon_urls = state.og_image_url, list(state.favicon_urls)
        if state.is_image:
            image_url = url
        elif state.screenshot_status != "succeeded":  # nobody has read the page yet
            values = await self._collect_page_values(await self._capture.read_page(url), url)
            image_url, icon_urls = values["og_image_url"], values["favicon_urls"]
        image = await self._fetch_image(state, image_url) if image_url else None
        if image is not None:
            values |= describe_image(image)
            files["og_image"] = await self._save_file(state, "image", image.content, image.content_type)
        icon = await self._find_favicon(url, [favicon_url, *icon_urls] if favicon_url else icon_urls)
        if icon is not None:
            files["favicon"] = await self._save_file(state, "favicon", *icon)
        return values, files

    async def _fetch_image(self, state: BookmarkState, url: str) -> FetchedImage | None:
        """Fetch the image that a page names. A page whose image is broken is shown without one."""
        account = UsageAccount(owner=str(state.user_id), source=f"bookmark {state.id}")
        try:
            return await self._capture.fetch_image(url, account=account)
        except Exception as error:
            if state.is_image or describe_step_error(error).retry:
                raise
            return None

    async def _find_favicon(self, url: str, icon_urls: Sequence[str]) -> tuple[bytes, str] | None:
        """Fetch the icon of a page. A page whose icon is broken is shown without one."""
        try:
            return await self._capture.find_favicon(url, icon_urls)
        except (PublicError, EgressError):
            return None

    async def _save_file(
        self, state: BookmarkState, name: str, content: bytes, content_type: str
    ) -> Artifact:
        suffix = mimetypes.guess_extension(content_type) or ""
        return await self._client.files.put(
            f"{name}{suffix}",
            content,
            content_type,
            owner=str(state.user_id),
            kind=FILE_KIND,
            ttl=UNCOMMITTED_FILE_TTL,
            meta={"bookmark": state.id},
        )


def describe_image(image: FetchedImage) -> StepValues:
    """Return the columns that describe the image of a bookmark."""
    return {
        "blurhash": image.blurhash,
        "width": image.width,
        "height": image.height,
        "ocr": image.ocr_text,
        "caption": image.caption,
    }


def describe_step_error(error: Exception) -> StepOutcome:
    """Return the outcome of a failed step. Errors that are not written for users get a general message."""
    if isinstance(error, EgressError):
        return StepOutcome(succeeded=False, error=error.message, retry=error.retryable)
    if isinstance(error, QuotaExceededError):
        return StepOutcome(succeeded=False, error=error.message, retry=False)
    if isinstance(error, PublicError):
        return StepOutcome(succeeded=False, error=str(error), retry=bool(getattr(error, "retry", True)))
    return StepOutcome(succeeded=False, error=HIDDEN_STEP_ERROR)


def clean_values(values: StepValues) -> StepValues:
    """Shorten texts, and remove characters that PostgreSQL cannot store."""
    return {
        name: clean_text(value, MAX_CHARS_BY_COLUMN[name])
        if isinstance(value, str) and name in MAX_CHARS_BY_COLUMN
        else value
        for name, value in values.items()
    }


def clean_text(text: str, max_chars: int) -> str:
    """Return the text without NUL characters and broken surrogates, with at most `max_chars` characters."""
    return text.replace("\0", "")[:max_chars].encode("utf-8", "replace").decode()
