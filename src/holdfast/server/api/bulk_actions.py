"""Endpoints for operators: retry or cancel all jobs that match a search, and follow such bulk actions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast import search
from holdfast.engine import bulk_actions
from holdfast.engine.bulk_actions import BulkAction, BulkStageOptions
from holdfast.errors import InvalidError
from holdfast.server.api.audit import OPERATOR_ENDPOINT_OPTIONS, record_service_action
from holdfast.server.api.identity import identify_caller, transaction_as_caller
from holdfast.server.api.json_responses import ensure_exists, json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.request_parsing import parse_body, parse_path_uuid
from holdfast.server.api.schedules import StateChangeResult

_BULK_ENDPOINT_OPTIONS: dict[str, Any] = {"tag": "jobs", **OPERATOR_ENDPOINT_OPTIONS}


class StartBulkActionRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Request body of a bulk action. `search` selects jobs, such as `queue:mail state:failed older:1h`.

    A retry begins with stages of `stage_sizes` jobs and stops if more than `max_failed_share` of them fail
    again. With `dry_run`, the matching jobs are counted and nothing is changed.
    """

    verb: Literal["retry", "cancel"]
    search: Annotated[str, Meta(min_length=1, max_length=4000)]
    reason: Annotated[str, Meta(min_length=1, max_length=500)]
    stage_sizes: Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Meta(max_length=10)] = (10, 100)
    max_jobs_per_s: Annotated[float, Meta(gt=0)] | None = None
    max_failed_share: Annotated[float, Meta(ge=0, le=1)] = 0.2
    dry_run: bool = False


class StartedBulkActions(msgspec.Struct, kw_only=True):
    """Started bulk actions: one, one for each shard with matching jobs, or none if no job matches.

    `matching` is how many jobs matched. It is at least that many if `matching_exact` is false.
    """

    matching: int
    matching_exact: bool
    actions: list[BulkAction]


class BulkCommandRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Request body that pauses, resumes or stops a bulk action."""

    command: Literal["pause", "resume", "stop"]


@api_operation(
    "Retry or cancel all jobs that match a search",
    body=StartBulkActionRequest,
    response=StartedBulkActions,
    status=201,
    **_BULK_ENDPOINT_OPTIONS,
)
async def start_bulk_action(request: Request) -> Response:
    body = await parse_body(request, StartBulkActionRequest)
    query = search.parse_search(body.search)
    if not query.terms:
        raise InvalidError(
            "The search selects all jobs.", fix="Add a term, such as queue:mail.", field="search"
        )
    caller = await identify_caller(request)
    options = BulkStageOptions(
        stage_sizes=body.stage_sizes,
        max_jobs_per_s=body.max_jobs_per_s,
        max_failed_share=body.max_failed_share,
    )
    async with transaction_as_caller(request) as connection:
        count = await bulk_actions.preview_bulk_action(connection, body.verb, query)
        started = StartedBulkActions(matching=count.count, matching_exact=count.exact, actions=[])
        if count.count and not body.dry_run:
            bulk_id = await bulk_actions.start_bulk_action(
                connection, body.verb, query, by=caller.name, reason=body.reason, ramp=options
            )
            action = ensure_exists(await bulk_actions.get_bulk_action(connection, bulk_id), "Bulk action")
            started.actions.append(action)
            await record_service_action(
                request, connection, f"bulk.{body.verb}", bulk_id, search=query.text, jobs=action.total
            )
    return json_response(started, 201)


@api_operation(
    "List bulk actions of the last 30 days, newest first",
    response=list[BulkAction],
    **_BULK_ENDPOINT_OPTIONS,
)
async def list_bulk_actions(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        return json_response(await bulk_actions.list_bulk_actions(connection))


@api_operation(
    "Read a bulk action and its progress",
    response=BulkAction,
    other_responses={404: "The bulk action does not exist"},
    **_BULK_ENDPOINT_OPTIONS,
)
async def get_bulk_action(request: Request) -> Response:
    bulk_id = parse_path_uuid(request)
    async with transaction_as_caller(request) as connection:
        action = await bulk_actions.get_bulk_action(connection, bulk_id)
    return json_response(ensure_exists(action, f"Bulk action {bulk_id}"))


@api_operation(
    "Pause, resume or stop a bulk action",
    body=BulkCommandRequest,
    response=StateChangeResult,
    other_responses={404: "The bulk action does not exist"},
    **_BULK_ENDPOINT_OPTIONS,
)
async def control_bulk_action(request: Request) -> Response:
    bulk_id, body = parse_path_uuid(request), await parse_body(request, BulkCommandRequest)
    async with transaction_as_caller(request) as connection:
        ensure_exists(await bulk_actions.get_bulk_action(connection, bulk_id), f"Bulk action {bulk_id}")
        changed = await bulk_actions.control_bulk_action(connection, bulk_id, body.command)
        if changed:
            await record_service_action(request, connection, f"bulk.{body.command}", bulk_id)
    return json_response(StateChangeResult(changed=changed))


def build_bulk_action_routes() -> list[BaseRoute]:
    return [
        Route("/api/bulk-actions", start_bulk_action, methods=["POST"]),
        Route("/api/bulk-actions", list_bulk_actions, methods=["GET"]),
        Route("/api/bulk-actions/{id}", get_bulk_action, methods=["GET"]),
        Route("/api/bulk-actions/{id}/command", control_bulk_action, methods=["POST"]),
    ]
