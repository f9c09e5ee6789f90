"""Endpoints for alerts, for operators: read and acknowledge alerts, silence them, and change their rules."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.definitions.validation import format_name_suggestion
from holdfast.engine import alerts
from holdfast.engine.alerts import Alert, AlertKind, AlertRule, AlertSeverity, AlertSilence
from holdfast.errors import NotFoundError
from holdfast.server.api.audit import OPERATOR_ENDPOINT_OPTIONS, audited_transaction
from holdfast.server.api.identity import identify_caller, transaction_as_caller
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.limits import NonEmptyName
from holdfast.server.api.operations import api_operation
from holdfast.server.api.request_parsing import parse_body, parse_path_name, parse_path_uuid, parse_query
from holdfast.server.api.schedules import StateChangeResult

Seconds = Annotated[float, Meta(ge=0, le=31_536_000)]
_ALERT_ENDPOINT_OPTIONS: dict[str, Any] = {"tag": "alerts", **OPERATOR_ENDPOINT_OPTIONS}


class AlertListQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Query parameters of a list of alerts. `resolved` lists those that have ended, newest first."""

    resolved: bool = False
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class AcknowledgeAlertRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Request body to acknowledge an alert. `note` is shown to other operators."""

    note: Annotated[str, Meta(max_length=1000)] | None = None


class SilenceAlertsRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Request body to send no notifications until a time.

    `rule` and `subject` (such as a queue) select alerts. Without them the silence is for all alerts.
    """

    until: Annotated[datetime, Meta(tz=True)]
    rule: NonEmptyName | None = None
    subject: NonEmptyName | None = None
    reason: Annotated[str, Meta(max_length=1000)] | None = None


class CreatedSilence(msgspec.Struct, kw_only=True):
    """The id of a new silence."""

    id: UUID


class PutAlertRuleRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Request body to create or replace an alert rule.

    `threshold` and `clear_below` (default: the threshold) are in the unit of the kind: seconds, bytes, a
    share from 0 to 1, or a number. The alert fires when the value is above `threshold` for `for_s` seconds,
    and ends when it is at most `clear_below` for `clear_after_s` seconds. `subject` limits the rule to one
    queue, task type or schedule, or to those that match `mail-*`.
    """

    kind: AlertKind
    threshold: float
    clear_below: float | None = None
    subject: NonEmptyName | None = None
    severity: AlertSeverity = "warning"
    for_s: Seconds = 0
    clear_after_s: Seconds = 60
    window_s: Seconds = 900
    min_count: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    repeat_s: Seconds | None = None
    channels: Annotated[list[NonEmptyName], Meta(max_length=20)] | None = None
    enabled: bool = True


@api_operation(
    "List the alerts that fire, by severity and size, or those that have ended",
    query=AlertListQuery,
    response=list[Alert],
    **_ALERT_ENDPOINT_OPTIONS,
)
async def list_alerts(request: Request) -> Response:
    query = parse_query(request, AlertListQuery)
    async with transaction_as_caller(request) as connection:
        rows = await alerts.list_alerts(connection, resolved=query.resolved, limit=query.limit)
    return json_response(rows)


@api_operation(
    "Read an alert",
    response=Alert,
    other_responses={404: "The alert does not exist"},
    **_ALERT_ENDPOINT_OPTIONS,
)
async def get_alert(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        return json_response(await alerts.get_alert(connection, parse_path_uuid(request)))


@api_operation(
    "Acknowledge an alert: send no more reminders",
    body=AcknowledgeAlertRequest,
    response=StateChangeResult,
    other_responses={404: "The alert does not exist"},
    **_ALERT_ENDPOINT_OPTIONS,
)
async def acknowledge_alert(request: Request) -> Response:
    alert_id, body = parse_path_uuid(request), await parse_body(request, AcknowledgeAlertRequest)
    caller = await identify_caller(request)
    async with audited_transaction(request, "alert.acknowledge", str(alert_id), note=body.note) as connection:
        changed = await alerts.acknowledge_alert(connection, alert_id, caller.name, body.note)
    return json_response(StateChangeResult(changed=changed))


@api_operation(
    "List the silences that have not ended", response=list[AlertSilence], **_ALERT_ENDPOINT_OPTIONS
)
async def list_alert_silences(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        return json_response(await alerts.list_alert_silences(connection))


@api_operation(
    "Silence alerts: send no notifications until a time",
    body=SilenceAlertsRequest,
    response=CreatedSilence,
    status=201,
    other_responses={404: "The alert rule does not exist"},
    **_ALERT_ENDPOINT_OPTIONS,
)
async def silence_alerts(request: Request) -> Response:
    body, caller = await parse_body(request, SilenceAlertsRequest), await identify_caller(request)
    async with audited_transaction(
        request,
        "alert.silence",
        rule=body.rule,
        subject=body.subject,
        until=body.until.isoformat(),
        reason=body.reason,
    ) as connection:
        silence_id = await alerts.silence_alerts(
            connection, body.until, caller.name, rule=body.rule, subject=body.subject, reason=body.reason
        )
    return json_response(CreatedSilence(id=silence_id), status=201)


@api_operation(
    "End a silence",
    status=204,
    other_responses={404: "The silence does not exist, or has ended"},
    **_ALERT_ENDPOINT_OPTIONS,
)
async def end_alert_silence(request: Request) -> Response:
    silence_id = parse_path_uuid(request)
    async with audited_transaction(request, "alert.end_silence", str(silence_id)) as connection:
        if not await alerts.end_alert_silence(connection, silence_id):
            raise NotFoundError(f"Silence {silence_id} does not exist, or has ended.")
    return Response(status_code=204)


@api_operation("List alert rules", response=list[AlertRule], **_ALERT_ENDPOINT_OPTIONS)
async def list_alert_rules(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        return json_response(await alerts.list_alert_rules(connection))


@api_operation(
    "Create or replace an alert rule", body=PutAlertRuleRequest, status=204, **_ALERT_ENDPOINT_OPTIONS
)
async def put_alert_rule(request: Request) -> Response:
    name, body = parse_path_name(request), await parse_body(request, PutAlertRuleRequest)
    fields = msgspec.structs.asdict(body)
    async with audited_transaction(request, "alert_rule.put", name, **fields) as connection:
        await alerts.put_alert_rule(connection, AlertRule(name=name, **fields))
    return Response(status_code=204)


@api_operation(
    "Delete an alert rule and end its alerts",
    status=204,
    other_responses={404: "The rule does not exist"},
    **_ALERT_ENDPOINT_OPTIONS,
)
async def delete_alert_rule(request: Request) -> Response:
    name = parse_path_name(request)
    async with audited_transaction(request, "alert_rule.delete", name) as connection:
        if not await alerts.delete_alert_rule(connection, name):
            known = [rule.name for rule in await alerts.list_alert_rules(connection)]
            raise NotFoundError(f"Alert rule {name!r} does not exist{format_name_suggestion(name, known)}")
    return Response(status_code=204)


def build_alert_routes() -> list[BaseRoute]:
    return [
        Route("/api/alerts", list_alerts, methods=["GET"]),
        Route("/api/alerts/{id}", get_alert, methods=["GET"]),
        Route("/api/alerts/{id}/acknowledge", acknowledge_alert, methods=["POST"]),
        Route("/api/alert-silences", list_alert_silences, methods=["GET"]),
        Route("/api/alert-silences", silence_alerts, methods=["POST"]),
        Route("/api/alert-silences/{id}", end_alert_silence, methods=["DELETE"]),
        Route("/api/alert-rules", list_alert_rules, methods=["GET"]),
        Route("/api/alert-rules/{name}", put_alert_rule, methods=["PUT"]),
        Route("/api/alert-rules/{name}", delete_alert_rule, methods=["DELETE"]),
    ]
