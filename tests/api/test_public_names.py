"""The public names of holdfast.server: the list is pinned, and every name has a docstring with an example."""

from __future__ import annotations

import doctest
import subprocess
import sys
from typing import Any

import pytest

from holdfast import server

PUBLIC_NAMES = {
    "HIDDEN_ERROR_MESSAGE", "AppServices", "Caller", "DashboardUser", "Endpoint", "EventFrame",
    "EventStreamResponse", "EventSubscription", "FrameBuilder", "JobListQuery", "JobView", "PriorityRoute",
    "ProblemDetails", "StreamViewer", "UnauthenticatedError", "ZipEntry", "api_operation",
    "call_built_in_endpoint", "create_app", "create_dashboard", "encode_event_frames", "ensure_exists",
    "get_client", "get_idempotency_key", "get_settings", "get_store", "identify_caller",
    "issue_stream_ticket", "json_response", "make_zip_entry", "parse_body", "parse_json",
    "parse_last_event_id", "parse_path_name", "parse_path_uuid", "parse_query", "problem_response",
    "read_body", "read_json_body", "redact_error", "redact_job", "require_service",
    "require_stream_viewer", "require_user", "reserve_stream_slot", "static_page_routes", "stream_events",
    "subscribe_to_job_events", "transaction_as_caller", "zip_response",
}  # fmt: skip
# Type aliases and constants cannot carry a docstring. Schemas are documented in the OpenAPI document.
WITHOUT_EXAMPLE = {"HIDDEN_ERROR_MESSAGE", "Endpoint", "FrameBuilder", "JobView", "ProblemDetails"}


def test_the_public_names_are_pinned() -> None:
    assert set(server.__all__) == PUBLIC_NAMES
    assert list(server.__all__) == sorted(server.__all__, key=lambda name: (not name.isupper(), name))


@pytest.mark.parametrize("name", sorted(PUBLIC_NAMES - WITHOUT_EXAMPLE))
def test_the_example_of_each_public_name_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")  # nothing connects to it
    documented: Any = getattr(server, name)
    [example] = doctest.DocTestFinder(recurse=False).find(documented, name, globs={})
    assert example.examples, f"{name} has no example"
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example)
    assert (result.attempted > 0, result.failed) == (True, 0)


def test_a_missing_extra_is_one_sentence_with_the_fix() -> None:
    code = "import sys; sys.modules['starlette'] = None\nimport holdfast.server"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last_line = run.stderr.strip().splitlines()[-1]
    assert "needs the package starlette" in last_line
    assert "pip install 'holdfast[server]'" in last_line
