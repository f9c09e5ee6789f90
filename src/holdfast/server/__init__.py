"""The HTTP API, the dashboard, and the pieces with which you add your own endpoints to them.

    from holdfast.server import create_app, create_dashboard

    app = create_app(dashboard=create_dashboard)  # uvicorn module:app

The names below are public. Everything else in this package may change. The package needs the extra `server`:
`pip install 'holdfast[server]'`.
"""

from __future__ import annotations

from holdfast.extras import require_extra

with require_extra("The HTTP server"):
    from holdfast.server.api.app import create_app
    from holdfast.server.api.event_frames import (
        EndFrameBuilder,
        EventFrame,
        FrameBuilder,
        encode_event_frames,
    )
    from holdfast.server.api.event_hub import EventSubscription
    from holdfast.server.api.event_streams import (
        EventStreamResponse,
        parse_last_event_id,
        reserve_stream_slot,
        stream_events,
        subscribe_to_job_events,
    )
    from holdfast.server.api.identity import (
        Caller,
        identify_caller,
        require_service,
        require_user,
        transaction_as_caller,
    )
    from holdfast.server.api.job_views import HIDDEN_ERROR_MESSAGE, JobView, redact_error, redact_job
    from holdfast.server.api.jobs import JobListQuery
    from holdfast.server.api.json_responses import ensure_exists, json_response
    from holdfast.server.api.metric_sources import MetricSample
    from holdfast.server.api.operations import Endpoint, api_operation
    from holdfast.server.api.priority_routes import PriorityRoute, call_built_in_endpoint
    from holdfast.server.api.problem_responses import ProblemDetails, problem_response
    from holdfast.server.api.request_parsing import (
        get_idempotency_key,
        parse_body,
        parse_json,
        parse_path_name,
        parse_path_uuid,
        parse_query,
        read_body,
        read_json_body,
    )
    from holdfast.server.api.services import AppServices, get_client, get_settings, get_store
    from holdfast.server.api.static_pages import create_static_page_routes
    from holdfast.server.api.stream_tickets import (
        StreamViewer,
        issue_stream_ticket,
        require_stream_viewer,
    )
    from holdfast.server.api.token_verification import UnauthenticatedError
    from holdfast.server.api.zip_archives import ZipEntry, make_zip_entry, zip_response
    from holdfast.server.dashboard import DashboardUser, create_dashboard

__all__ = [
    "HIDDEN_ERROR_MESSAGE",
    "AppServices",
    "Caller",
    "DashboardUser",
    "EndFrameBuilder",
    "Endpoint",
    "EventFrame",
    "EventStreamResponse",
    "EventSubscription",
    "FrameBuilder",
    "JobListQuery",
    "JobView",
    "MetricSample",
    "PriorityRoute",
    "ProblemDetails",
    "StreamViewer",
    "UnauthenticatedError",
    "ZipEntry",
    "api_operation",
    "call_built_in_endpoint",
    "create_app",
    "create_dashboard",
    "create_static_page_routes",
    "encode_event_frames",
    "ensure_exists",
    "get_client",
    "get_idempotency_key",
    "get_settings",
    "get_store",
    "identify_caller",
    "issue_stream_ticket",
    "json_response",
    "make_zip_entry",
    "parse_body",
    "parse_json",
    "parse_last_event_id",
    "parse_path_name",
    "parse_path_uuid",
    "parse_query",
    "problem_response",
    "read_body",
    "read_json_body",
    "redact_error",
    "redact_job",
    "require_service",
    "require_stream_viewer",
    "require_user",
    "reserve_stream_slot",
    "stream_events",
    "subscribe_to_job_events",
    "transaction_as_caller",
    "zip_response",
]
