"""What operators do: in one transaction with the line in the audit log that says so."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import Request

from holdfast.engine import access
from holdfast.engine.connection import Connection
from holdfast.model import Json
from holdfast.server.api.identity import identify_caller, transaction_as_caller

OPERATING: dict[str, Any] = {"access": "service", "scope": "operate"}


@asynccontextmanager
async def operating(
    request: Request, action: str, target: str | None = None, *, as_login: bool = False, **detail: Json
) -> AsyncGenerator[Connection]:
    """Like `acting`; when the body was left without an error, it is written down who did what to what."""
    caller = await identify_caller(request)
    async with transaction_as_caller(request, as_login=as_login) as connection:
        yield connection
        said = {name: value for name, value in detail.items() if value is not None}
        await access.record(connection, caller.name, action, target, said or None)
