"""Read and validate requests: bodies, JSON, query parameters and path parameters."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar, cast
from uuid import UUID

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request

from holdfast.errors import InvalidError, TooLargeError
from holdfast.model import Json
from holdfast.server.api.services import get_services

T = TypeVar("T")

MAX_JSON_DEPTH = 32
MAX_BODY_READ_TIME_S = 20.0
MAX_PATH_NAME_BYTES = 200
MAX_IDEMPOTENCY_KEY_CHARS = 500
_BODY_ASGI_SCOPE_KEY = "holdfast.body"
_json_decoder = msgspec.json.Decoder()


async def read_body(request: Request, max_bytes: int | None = None) -> bytes:
    """Return the body of a request.

    Raise `TooLargeError` (413) if the body has more than `max_bytes` bytes. The default is the setting
    `api_body_limit`. Raise 408 if the body takes longer than 20 seconds to arrive. You can read the body more
    than once.

    >>> from starlette.requests import Request
    >>> from starlette.responses import Response
    >>> from holdfast.server import json_response, read_body
    >>> async def count_bytes(request: Request) -> Response:
    ...     return json_response({"bytes": len(await read_body(request, max_bytes=1_000_000))})
    """
    if max_bytes is None:
        max_bytes = get_services(request).settings.api_body_limit
    cached: bytes | None = request.scope.get(_BODY_ASGI_SCOPE_KEY)
    if cached is not None:
        return cached
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(MAX_BODY_READ_TIME_S):
            async for chunk in request.stream():
                size += len(chunk)
                if size > max_bytes:
                    raise TooLargeError(f"The body is larger than {max_bytes:,} bytes.", field="body")
                chunks.append(chunk)
    except TimeoutError:
        raise HTTPException(408, "The body took too long to arrive") from None
    body = request.scope[_BODY_ASGI_SCOPE_KEY] = b"".join(chunks)
    return body


async def read_json_body(request: Request) -> Json:
    """Return the JSON body of a request. An empty body is an empty object.

    Raise 415 if the content type is not JSON, and `InvalidError` (422) if the body is not JSON, is nested
    deeper than 32 levels or contains NUL characters, which PostgreSQL cannot store.

    >>> from starlette.requests import Request
    >>> from starlette.responses import Response
    >>> from holdfast.server import json_response, read_json_body
    >>> async def echo(request: Request) -> Response:
    ...     return json_response(await read_json_body(request))
    """
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise HTTPException(415, "The content type must be application/json")
    text = await read_body(request)
    if not text.strip():
        return {}
    return parse_json(text)


def parse_json(text: bytes) -> Json:
    """Parse JSON text of a request. Raise `InvalidError` (422) as `read_json_body` does.

    >>> from holdfast.server import parse_json
    >>> assert parse_json(b'{"pages": [1, 2]}') == {"pages": [1, 2]}
    """
    try:
        value = _json_decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidError(f"The body is not valid JSON: {error}.", field="body") from None
    if text.count(b"[") + text.count(b"{") > MAX_JSON_DEPTH:
        _reject_deep_nesting(value)
    if b"\\u0000" in text or b"\0" in text:
        _reject_nul_characters(value)
    return value


def _reject_deep_nesting(value: Json) -> None:
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        level = [child for parent in level for child in _list_child_values(parent)]
        if not level:
            return
    raise InvalidError(f"The body is nested deeper than {MAX_JSON_DEPTH} levels.", field="body")


def _list_child_values(value: Json) -> list[Json]:
    if isinstance(value, dict):
        return list(cast("dict[str, Any]", value).values())
    return value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]


def _reject_nul_characters(value: Json) -> None:
    if isinstance(value, str):
        if "\0" in value:
            raise InvalidError(
                "The body contains a NUL character, which PostgreSQL cannot store.", field="body"
            )
    elif isinstance(value, dict):
        for key, child in cast("dict[str, Any]", value).items():
            _reject_nul_characters(key)
            _reject_nul_characters(child)
    else:
        for child in _list_child_values(value):
            _reject_nul_characters(child)


async def parse_body(request: Request, shape: type[T]) -> T:
    """Return the JSON body of a request as a value of type `shape`.

    Raise `InvalidError` (422), which names the invalid field, if the body does not match the type.

    >>> import msgspec
    >>> from starlette.requests import Request
    >>> from starlette.responses import Response
    >>> from holdfast.server import json_response, parse_body
    >>> class NewNote(msgspec.Struct):
    ...     title: str
    >>> async def create_note(request: Request) -> Response:
    ...     note = await parse_body(request, NewNote)
    ...     return json_response({"title": note.title}, 201)
    """
    return convert_json(await read_json_body(request), shape, "body")


def parse_query(request: Request, shape: type[T]) -> T:
    """Return the query parameters of a request as a value of type `shape`.

    Raise `InvalidError` (422), which names the invalid parameter, if a parameter is invalid or occurs twice.

    >>> import msgspec
    >>> from starlette.requests import Request
    >>> from starlette.responses import Response
    >>> from holdfast.server import json_response, parse_query
    >>> class NotesQuery(msgspec.Struct, forbid_unknown_fields=True):
    ...     limit: int = 50
    >>> async def list_notes(request: Request) -> Response:
    ...     return json_response({"limit": parse_query(request, NotesQuery).limit})
    """
    parameters: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in parameters:
            raise InvalidError(f"The parameter {name} occurs more than once.", field=name)
        parameters[name] = value
    for name, value in parameters.items():
        if "\0" in value:
            raise InvalidError(f"The parameter {name} contains a NUL character.", field=name)
    return convert_json(parameters, shape, "query", strict=False)


def convert_json(value: Json, shape: type[T], what: str, *, strict: bool = True) -> T:
    """Convert decoded JSON to a value of type `shape`. Raise `InvalidError` if it does not match.

    The error names the invalid field, or `what` if the whole value is invalid.
    """
    try:
        return msgspec.convert(value, shape, strict=strict)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        field = path.rstrip("`").lstrip(".") or what
        if "unknown field `" in message or "required field `" in message:
            field = message.rpartition("field `")[2].rstrip("`")
        raise InvalidError(f"{message}.", field=field) from None


def parse_path_uuid(request: Request, name: str = "id") -> UUID:
    """Return the path parameter `name` as a UUID. Raise `InvalidError` (422) for other text.

    >>> from starlette.requests import Request
    >>> from starlette.responses import Response
    >>> from holdfast.server import json_response, parse_path_uuid
    >>> async def show_note(request: Request) -> Response:  # Route("/notes/{id}", show_note)
    ...     return json_response({"id": parse_path_uuid(request, "id")})
    """
    try:
        return UUID(request.path_params[name])
    except ValueError:
        raise InvalidError(f"{name} is not a UUID.", field=name) from None


def parse_path_name(request: Request, name: str = "name") -> str:
    """Return the path parameter `name` as text.

    Raise `InvalidError` (422) unless the text has 1 to 200 bytes and no control characters.

    >>> from starlette.requests import Request
    >>> from starlette.responses import Response
    >>> from holdfast.server import json_response, parse_path_name
    >>> async def show_folder(request: Request) -> Response:  # Route("/folders/{name}", show_folder)
    ...     return json_response({"name": parse_path_name(request)})
    """
    text: str = request.path_params[name]
    too_long = len(text.encode("utf-8", "surrogatepass")) > MAX_PATH_NAME_BYTES
    if not text or too_long or any(ord(c) < 32 for c in text):
        raise InvalidError(
            f"{name} must be 1 to {MAX_PATH_NAME_BYTES} bytes without control characters.", field=name
        )
    return text


def get_idempotency_key(request: Request, body_key: object = None) -> str | None:
    """Return the header `Idempotency-Key`, or `body_key` if the request has no such header.

    Submit a job with this key, so that a repeated request returns the same job. Raise `InvalidError` (422) if
    the header is invalid or differs from `body_key`.

    >>> from starlette.requests import Request
    >>> from starlette.responses import Response
    >>> from holdfast.server import get_idempotency_key, json_response
    >>> async def order(request: Request) -> Response:
    ...     return json_response({"key": get_idempotency_key(request)})
    """
    header = request.headers.get("idempotency-key")
    if header is None:
        return body_key if isinstance(body_key, str) else None
    if not header or len(header) > MAX_IDEMPOTENCY_KEY_CHARS or not header.isprintable():
        raise InvalidError(
            f"Idempotency-Key must be 1 to {MAX_IDEMPOTENCY_KEY_CHARS} printable characters.", field="key"
        )
    if body_key is not None and body_key != header:
        raise InvalidError("The header Idempotency-Key and the key in the body differ.", field="key")
    return header
