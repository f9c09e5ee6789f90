"""The message that asks for the processing of a bookmark: its queue, its fields and its validation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast
from uuid import UUID

from holdfast.systems.request_context import is_uuid

BOOKMARK_QUEUE: Final = "add-bookmark-url-queue"
MAX_BOOKMARK_ID: Final = 2**63 - 1


class InvalidMessageError(Exception):
    """A message of the queue cannot be processed. It stays in the queue until the read limit."""


@dataclass(frozen=True)
class BookmarkMessage:
    """A valid message. `user_id` is None in old messages, whose owner is looked up."""

    bookmark_id: int
    url: str
    user_id: UUID | None
    favicon_url: str | None
    is_image: bool


def build_message_body(
    bookmark_id: int, url: str, user_id: UUID | str, *, is_image: bool, favicon_url: str | None = None
) -> dict[str, Any]:
    """Build the body of a message, with the names of the contract."""
    return {
        "bookmarkId": bookmark_id,
        "url": url,
        "userId": str(user_id),
        "favIcon": favicon_url,
        "isImage": is_image,
    }


def parse_message_body(value: object) -> BookmarkMessage:
    """Check the body of a message. Raise `InvalidMessageError`, which names the field."""
    if not isinstance(value, dict):
        raise InvalidMessageError("The message is not an object.")
    body = cast("dict[str, Any]", value)
    bookmark_id, url, user_id = body.get("bookmarkId"), body.get("url"), body.get("userId")
    if type(bookmark_id) is not int or not 0 < bookmark_id <= MAX_BOOKMARK_ID:
        raise InvalidMessageError("bookmarkId must be a positive whole number.")
    if not isinstance(url, str) or not url:
        raise InvalidMessageError("url must be a text that is not empty.")
    if user_id is not None and not (isinstance(user_id, str) and is_uuid(user_id)):
        raise InvalidMessageError("userId must be a UUID.")
    if not isinstance(body.get("isImage"), bool):
        raise InvalidMessageError("isImage must be true or false.")
    favicon_url = body.get("favIcon")
    if favicon_url is not None and not isinstance(favicon_url, str):
        raise InvalidMessageError("favIcon must be a text or null.")
    return BookmarkMessage(
        bookmark_id, url, UUID(user_id) if user_id else None, favicon_url or None, body["isImage"]
    )


def get_bookmark_id(value: object) -> int | None:
    """Return the bookmark id of a message body that may be invalid, or None."""
    bookmark_id = cast("dict[str, Any]", value).get("bookmarkId") if isinstance(value, dict) else None
    return bookmark_id if type(bookmark_id) is int else None
