"""Read the user, the schema and owned files for a request to a system."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

from starlette.requests import Request

from holdfast import Artifact
from holdfast.errors import GoneError, InvalidError, NotFoundError, RefusedError
from holdfast.server import Caller, get_client, get_settings, require_user

MAX_FILE_NAME_CHARS = 200
MAX_FILE_EXTENSION_CHARS = 10


async def require_owner_id(request: Request) -> str:
    """Return the id of the signed-in user, or of the user that a service names in `x-user-id`.

    Raise 401 without a valid credential, 403 for a service that names no user, and 422 for an id that is not
    a UUID.

    >>> from starlette.requests import Request
    >>> from starlette.responses import Response
    >>> from holdfast.server import json_response
    >>> from holdfast.systems import require_owner_id
    >>> async def show_account(request: Request) -> Response:
    ...     return json_response({"id": await require_owner_id(request)})
    """
    caller = await require_user(request)
    owner = caller.owner if caller.kind == "user" else request.headers.get("x-user-id")
    if owner is None:
        raise RefusedError(
            "This request needs a user.",
            fix="Sign in as a user. A service names the user in the header x-user-id.",
        )
    if not is_uuid(owner) or str(UUID(owner)) != owner:
        # The tables of systems store a UUID, and jobs and files store the text. Two spellings of one UUID
        # would be one user there and two users here.
        raise InvalidError("The user id must be a UUID in lower case with hyphens.", field="sub")
    return owner


def is_uuid(text: str | None) -> bool:
    """Return whether the text is a UUID."""
    try:
        return bool(UUID(text or ""))
    except ValueError:
        return False


def is_admin(caller: Caller) -> bool:
    """Return whether the caller is a user with the role `admin`.

    The role is in the token at `app_metadata.role`, which users cannot change (the convention of Supabase).
    """
    app_metadata: Any = caller.claims.get("app_metadata")
    claims = cast("dict[str, Any]", app_metadata) if isinstance(app_metadata, dict) else {}
    return caller.kind == "user" and claims.get("role") == "admin"


def get_systems_schema(request: Request) -> str:
    """Return the name of the database schema that has the tables of the systems."""
    return get_settings(request).systems_schema


async def find_owned_file(request: Request, file_id: UUID | None, owner: str) -> Artifact | None:
    """Return a file, or None if the user does not own the file or the file was deleted.

    Users can insert rows that refer to any file, so the owner of the file itself is checked.
    """
    if file_id is None:
        return None
    try:
        file = await get_client(request).files.get(file_id)
    except (NotFoundError, GoneError):
        return None
    return file if file.owner == owner else None


def sanitize_file_name(title: str) -> str:
    """Convert a title to a file name that is valid on every file system."""
    name = "".join("-" if c in '/\\:*?"<>|' else c for c in title if c.isprintable()).strip(" .")
    if len(name) > MAX_FILE_NAME_CHARS:
        stem, dot, extension = name.rpartition(".")
        ending = dot + extension if stem and len(extension) <= MAX_FILE_EXTENSION_CHARS else ""
        name = name[: MAX_FILE_NAME_CHARS - len(ending)].rstrip(" .") + ending
    return name or "document.pdf"
