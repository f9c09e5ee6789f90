"""What the routes of every system need: who asks, as which user, and the client that signs links."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

import msgspec
from starlette.requests import Request

from holdfast import Client
from holdfast.client.files import Files
from holdfast.errors import InvalidError, RefusedError
from holdfast.model import Artifact
from holdfast.server.api import Caller, require_user, services_of

PLACE = "holdfast_systems_client"


async def owner_of(request: Request) -> str:
    """The user on whose behalf this is: the signed-in one, or the one a service names in `x-user-id`."""
    caller = await require_user(request)
    owner = caller.owner if caller.kind == "user" else request.headers.get("x-user-id")
    if owner is None:
        raise RefusedError("This is for users.", fix="A service says for whom in the header x-user-id.")
    if not is_uuid(owner):
        raise InvalidError("The id of a user must be a UUID.", field="sub")
    return str(UUID(owner))


def is_uuid(text: str | None) -> bool:
    try:
        return bool(UUID(text or ""))
    except ValueError:
        return False


def is_admin(caller: Caller) -> bool:
    """A user whose token says so where users cannot write: `app_metadata.role`, as Supabase has it."""
    given: Any = caller.claims.get("app_metadata")
    said = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    return caller.kind == "user" and said.get("role") == "admin"


def client_of(request: Request) -> Client:
    """One for the application, made at the first request; it shares the settings and the store."""
    state = request.app.state
    made: Client | None = getattr(state, PLACE, None)
    if made is None:
        services = services_of(request)
        made = Client(services.database.url.reveal(), settings=services.settings)
        if services.store is not None:
            made.files = Files(made, services.store)
        setattr(state, PLACE, made)
    return made


def schema_of(request: Request) -> str:
    return services_of(request).settings.systems_schema


async def find_file(connection: Any, artifact_id: UUID | None, owner: str) -> Artifact | None:
    """A visible file, if it is this user's. Users may write rows that name files: the file is asked."""
    text = await connection.fetchval("select holdfast.get_artifact($1)", artifact_id) if artifact_id else None
    told: dict[str, Any] = msgspec.json.decode(text) if text else {}
    if told.get("owner") != owner or told.get("status") != "visible":
        return None
    return msgspec.convert({name: told[name] for name in Artifact.__struct_fields__}, Artifact)


def file_name(title: str) -> str:
    """A title as a name that every file system takes."""
    plain = "".join("-" if c in '/\\:*?"<>|' else c for c in title if c.isprintable()).strip(" .")
    return plain[:200] or "document.pdf"
