"""Run an operator's action and its audit log entry in one transaction."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import Request

from holdfast.engine import audit
from holdfast.engine.connection import Connection
from holdfast.model import Json
from holdfast.server.api.identity import identify_caller, transaction_as_caller

OPERATOR_ENDPOINT_OPTIONS: dict[str, Any] = {"access": "service", "scope": "operate"}


async def record_service_action(
    request: Request, connection: Connection, action: str, target: object, **detail: Json
) -> None:
    """Add an audit log entry if the caller is a service. What users do to their own jobs is not audited."""
    caller = await identify_caller(request)
    if caller.kind == "service":
        details = {name: value for name, value in detail.items() if value is not None}
        await audit.record_audit_entry(connection, caller.name, action, str(target), details or None)


@asynccontextmanager
async def audited_transaction(
    request: Request, action: str, target: str | None = None, *, as_login: bool = False, **detail: Json
) -> AsyncGenerator[Connection]:
    """Open a transaction as the caller, and add an audit log entry before it commits.

    The entry has the caller, the action, its target and the details that are not None.
    """
    caller = await identify_caller(request)
    async with transaction_as_caller(request, as_login=as_login) as connection:
        yield connection
        details = {name: value for name, value in detail.items() if value is not None}
        await audit.record_audit_entry(connection, caller.name, action, target, details or None)
