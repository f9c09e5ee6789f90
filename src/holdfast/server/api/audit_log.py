"""Serve the audit log to operators."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.engine import audit
from holdfast.server.api.audit import OPERATOR_ENDPOINT_OPTIONS
from holdfast.server.api.identity import transaction_as_caller
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.request_parsing import parse_query


class AuditLogQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Query parameters for a page of the audit log.

    `before` is the id of the last entry of the previous page.
    """

    before: Annotated[int, Meta(ge=1, le=2**62)] | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


@api_operation(
    "List the actions of operators, newest first",
    tag="audit log",
    query=AuditLogQuery,
    response=list[audit.AuditEntry],
    **OPERATOR_ENDPOINT_OPTIONS,
)
async def list_audit_entries(request: Request) -> Response:
    query = parse_query(request, AuditLogQuery)
    async with transaction_as_caller(request) as connection:
        entries = await audit.list_audit_entries(connection, before=query.before, limit=query.limit)
    return json_response(entries)


def build_audit_log_routes() -> list[BaseRoute]:
    return [Route("/api/audit", list_audit_entries, methods=["GET"])]
