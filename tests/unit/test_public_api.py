"""The public names, pinned: adding, removing or renaming one is a decision. Each has a documented example."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from typing import Any

import pytest

PUBLIC_NAMES: dict[str, str] = {
    "holdfast": """
        Alert AlertRule AlertSilence
        Artifact ArtifactOptions Batch BatchHandle BlockingBatchHandle BlockingClient BlockingJobHandle Call
        CallOptions Cancel ChildTaskOptions Client Connection Consumer ConsumerOptions Ctx Erasure Failure
        FileOptions Graph HoldfastError Job JobHandle JobPage JobTask JobType Lifespan Limit
        LimitOptions LogLine Message
        MessageMetrics MessagePolicy MessageQueue Node MessagePolicyChanges Progress PublicError QueueShare
        RateLimited MessageReadOptions Reject RetryPolicy Schedule ScheduleOptions ScheduledTask Secret
        Settings Snooze StoredSchedule SubmitOptions Task TaskExplanation TaskFailedError Worker __version__
        consumer job lifespan load_settings schedule shard_of task
    """,
    "holdfast.errors": """
        Cancel ConflictError DatabaseError DatabaseFullError DatabaseLoginError DatabasePermissionError
        DatabaseReadOnlyError DatabaseRefusedError DatabaseTooOldError DatabaseUnavailableError
        EmbeddedDatabaseError GoneError HoldfastError InvalidError LeaseLostError LifespanError
        NotFoundError OutcomeSignal PublicError QuotaExceededError RateLimited RefusedError Reject
        SchemaBusyError SchemaChangedError SchemaError SchemaMissingError SchemaOutdatedError
        SchemaTooNewError SettingsError Snooze StorageError StorageFullError StoragePermissionError
        StorageUnavailableError TaskFailedError TooLargeError TooManyRequestsError build_error_from_sqlstate
    """,
    "holdfast.telemetry": "EVENT_DESCRIPTIONS Subscriber emit has_subscribers subscribe subscription",
    "holdfast.egress": """
        EgressAllowlist EgressClient EgressConnectError EgressContentTypeError EgressDnsError EgressError
        EgressPolicy EgressRedirectError EgressRefusedError EgressResponse EgressResponseError EgressStream
        EgressTimeoutError EgressTlsError EgressTooLargeError EgressUrl GuardedProxy IpAddress ProxyLimits
        ProxyRefusal chromium_arguments is_public_address parse_egress_url request_blocking
    """,
    "holdfast.testing": """
        AttemptResult Clock ConsumedMessage DrainResult Holdfast ReplayResult SubmittedTask wait_until
    """,
    "holdfast.server": """
        HIDDEN_ERROR_MESSAGE AppServices Caller DashboardUser EndFrameBuilder Endpoint EventFrame
        EventStreamResponse EventSubscription FrameBuilder JobListQuery JobView MetricSample PriorityRoute
        ProblemDetails StreamViewer UnauthenticatedError ZipEntry api_operation call_built_in_endpoint
        create_app create_dashboard
        encode_event_frames ensure_exists get_client get_idempotency_key get_settings get_store
        identify_caller issue_stream_ticket json_response make_zip_entry parse_body parse_json
        parse_last_event_id parse_path_name parse_path_uuid parse_query problem_response read_body
        read_json_body redact_error redact_job require_service require_stream_viewer require_user
        reserve_stream_slot create_static_page_routes stream_events subscribe_to_job_events
        transaction_as_caller zip_response
    """,
    "holdfast.systems": """
        AppArguments System UserItem create_owned_link create_page_routes find_visible_files
        get_systems_schema install_tables mount qualify_tables require_owner_id
    """,
}
MODULES_WITH_EXAMPLES = (
    "holdfast", "holdfast.errors", "holdfast.telemetry", "holdfast.egress", "holdfast.server",
)  # fmt: skip
CLIENT_ATTRIBUTES = ("queues", "files", "schedules", "batches", "limits")


@pytest.mark.parametrize("module", PUBLIC_NAMES)
def test_public_names_are_pinned(module: str) -> None:
    assert sorted(importlib.import_module(module).__all__) == sorted(PUBLIC_NAMES[module].split())


def list_documented() -> list[tuple[str, Any]]:
    """The public classes and functions. Constants and type aliases have no docstring of their own."""
    documented: list[tuple[str, Any]] = []
    for module, names in PUBLIC_NAMES.items():
        for name in names.split():
            value = getattr(importlib.import_module(module), name)
            if inspect.isclass(value) or inspect.isfunction(value):
                documented.append((f"{module}.{name}", value))
    return documented


def has_example(doc: str) -> bool:
    return ">>>" in doc or "```python" in doc


@pytest.mark.parametrize("name", [name for name, _ in list_documented()])
def test_public_names_have_a_docstring_with_an_example(name: str) -> None:
    value = dict(list_documented())[name]
    doc = (vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__) or ""
    assert doc, f"{name} has no docstring"
    is_plain_error = (
        inspect.isclass(value) and issubclass(value, Exception) and not vars(value).get("__init__")
    )
    if name.rpartition(".")[0] in MODULES_WITH_EXAMPLES and not is_plain_error:
        assert has_example(doc), f"{name} has no example"


@pytest.mark.parametrize("part", [None, *CLIENT_ATTRIBUTES])
def test_methods_of_the_client_have_docstrings(part: str | None) -> None:
    from holdfast import Client  # noqa: PLC0415

    client = Client("postgresql://nobody@127.0.0.1:1/none")
    owner = client if part is None else getattr(client, part)
    for name, member in inspect.getmembers(type(owner)):
        if not name.startswith("_"):
            assert inspect.getdoc(member), f"{part or 'Client'}.{name} has no docstring"


def test_a_client_has_no_public_internals() -> None:
    from holdfast import Client  # noqa: PLC0415

    public = {
        name for name in dir(Client("postgresql://nobody@127.0.0.1:1/none")) if not name.startswith("_")
    }
    assert public == {
        "alerts", "batches", "blocking", "cancel", "close", "connection", "erase_owner", "explain", "files",
        "get", "iterate_jobs", "job_types", "limits", "logs", "pause_queue", "queues", "resume_queue",
        "retry", "schedules", "search_jobs", "settings", "shard", "shard_for", "shard_numbers",
        "start_job", "submit", "submit_many", "transaction", "watch",
    }  # fmt: skip


def test_names_of_the_package_are_imported_on_first_use() -> None:
    package = importlib.import_module("holdfast")

    assert {name for name in package.__all__ if getattr(package, name) is None} == set()
    assert set(package.__all__) <= set(dir(package))


@pytest.mark.parametrize(
    ("module", "unneeded"),
    [
        ("holdfast", {"asyncpg", "holdfast.client", "holdfast.worker"}),
        ("holdfast.worker.heartbeat_process", {"holdfast.client", "holdfast.definitions", "click", "rich"}),
        ("holdfast.cli.child", {"holdfast.client", "holdfast.cli.root", "click", "rich"}),
        ("holdfast.cli.worker", {"rich"}),
    ],
)
def test_processes_import_only_what_they_need(module: str, unneeded: set[str]) -> None:
    """A killed worker's successor starts these processes, so their start is part of every recovery."""
    code = f"import sys, {module}; print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout

    assert unneeded & set(output.split()) == set()
