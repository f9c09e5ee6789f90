"""What comes in and goes out: JSON of bounded size and depth, checked against a shape, and answers."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar, cast
from uuid import UUID

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from holdfast.errors import InvalidError, NotFoundError, TooLargeError
from holdfast.model import Json
from holdfast.server.api.services import services_of

T = TypeVar("T")

DEPTH = 32
BODY_SECONDS = 20.0
_json = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


def answer(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(_encoder.encode(value), status, headers, media_type="application/json")


async def raw_body(request: Request, limit: int | None = None) -> bytes:
    """The bytes of a body, at most so many, from a sender that does not dawdle."""
    most = services_of(request).settings.api_body_limit if limit is None else limit
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise TooLargeError(f"The body is longer than {most:,} bytes.", field="body")
                parts.append(part)
    except TimeoutError:
        raise HTTPException(408, "The body took too long to arrive") from None
    return b"".join(parts)


async def json_body(request: Request) -> Json:
    """Any JSON, not too deep. An empty body is an empty object."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise HTTPException(415, "Send application/json")
    text = await raw_body(request)
    if not text.strip():
        return {}
    return parse(text)


def parse(text: bytes) -> Json:
    try:
        value = _json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise InvalidError(f"The body is not JSON: {problem}.", field="body") from None
    if text.count(b"[") + text.count(b"{") > DEPTH:
        _refuse_depth(value)
    if b"\\u0000" in text or b"\0" in text:
        _refuse_nul(value)
    return value


def _refuse_depth(value: Json) -> None:
    level = [value]
    for _ in range(DEPTH):
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return
    raise InvalidError(f"The body is nested deeper than {DEPTH} levels.", field="body")


def _inside(value: Json) -> list[Json]:
    if isinstance(value, dict):
        return list(cast("dict[str, Any]", value).values())
    return value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]


def _refuse_nul(value: Json) -> None:
    if isinstance(value, str):
        if "\0" in value:
            raise InvalidError("A text has a NUL character, which PostgreSQL cannot keep.", field="body")
    elif isinstance(value, dict):
        for key, inner in cast("dict[str, Any]", value).items():
            _refuse_nul(key)
            _refuse_nul(inner)
    else:
        for inner in _inside(value):
            _refuse_nul(inner)


async def body_of(request: Request, kind: type[T]) -> T:
    """The JSON body as a struct; the field that does not fit is named."""
    return convert(await json_body(request), kind, "body")


def query_of(request: Request, kind: type[T]) -> T:
    """The query parameters as a struct. A parameter given twice has no meaning, so it is refused."""
    given: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in given:
            raise InvalidError(f"{name} is given twice.", field=name)
        given[name] = value
    for name, value in given.items():
        if "\0" in value:
            raise InvalidError(f"{name} has a NUL character.", field=name)
    return convert(given, kind, "query", strict=False)


def convert(value: Json, kind: type[T], what: str, *, strict: bool = True) -> T:
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as problem:
        message, _, place = str(problem).partition(" - at `$")
        field = place.rstrip("`").lstrip(".") or what
        if "unknown field `" in message or "required field `" in message:
            field = message.rpartition("field `")[2].rstrip("`")
        raise InvalidError(f"{message}.", field=field) from None


def uuid_in(request: Request, name: str = "id") -> UUID:
    """A path parameter. What is no id is the id of nothing."""
    text = request.path_params[name]
    try:
        found = UUID(text)
    except ValueError:
        raise InvalidError(f"{name} is not a UUID.", field=name) from None
    return found


def name_in(request: Request, name: str = "name") -> str:
    text: str = request.path_params[name]
    if not text or len(text.encode("utf-8", "surrogatepass")) > 200 or any(ord(c) < 32 for c in text):
        raise InvalidError(f"{name} must be 1 to 200 bytes without control characters.", field=name)
    return text


def found(value: T | None, what: str) -> T:
    """404 in the same words for what is not there and for what is not yours."""
    if value is None:
        raise NotFoundError(f"There is no such {what}.")
    return value
