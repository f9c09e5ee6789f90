"""Valid and invalid generated requests to every route: no server error, and every response as documented."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest
import schemathesis
import uvicorn
from api_clients import bearer_headers, make_token
from book_app import SERVICE_KEY, book_job, internal_job
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import checks
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi import checks as openapi

from holdfast.server import create_app
from holdfast.settings import Secret, Settings

MAX_EXAMPLES_PER_ROUTE = int(
    os.environ.get("HOLDFAST_FUZZ_EXAMPLES", "4")
)  # per route; `make fuzz` sets a higher number
# Without `positive_data_acceptance`: a valid request may name an object that does not exist.
RESPONSE_CHECKS = [
    checks.not_a_server_error,
    openapi.status_code_conformance,
    openapi.content_type_conformance,
    openapi.response_schema_conformance,
    openapi.response_headers_conformance,
    openapi.negative_data_rejection,
    openapi.ignored_auth,
    openapi.unsupported_method,
]


@pytest.fixture
def base_url(url: Secret, api_settings: Settings) -> Generator[str]:
    """Serve the application in a separate thread, because the generator is synchronous."""
    app = create_app(replace(api_settings, database_url=url), job_types=[book_job, internal_job])
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on"))
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(20)


@pytest.mark.timeout(600 if MAX_EXAMPLES_PER_ROUTE < 100 else 4 * 3600)
@pytest.mark.parametrize("caller", ["service", "user"])
def test_no_generated_request_causes_a_server_error(base_url: str, caller: str) -> None:
    headers = bearer_headers(SERVICE_KEY) if caller == "service" else bearer_headers(make_token("ann"))
    schema = schemathesis.openapi.from_url(f"{base_url}/api/openapi.json")
    failures: list[str] = []
    sent = 0
    for result in schema.get_all_operations():
        operation: Any = result.ok()  # type: ignore[union-attr]

        @settings(
            max_examples=MAX_EXAMPLES_PER_ROUTE
            if caller == "service"
            else max(MAX_EXAMPLES_PER_ROUTE // 3, 1),
            deadline=None,
            database=None,
            derandomize=MAX_EXAMPLES_PER_ROUTE
            < 100,  # the same requests in every CI run, different ones in long runs
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def attempt(case: Any) -> None:
            nonlocal sent
            sent += 1
            response = case.call(base_url=base_url, headers=headers, timeout=60)
            try:
                case.validate_response(response, checks=RESPONSE_CHECKS, headers=headers)
            except FailureGroup as error:
                message = " | ".join(f"{type(each).__name__}: {each}" for each in error.exceptions)
                body = case.body if isinstance(case.body, (dict, list, str, int)) else ""
                failures.append(
                    f"{case.method} {case.formatted_path} {body} -> {response.status_code} {message}"
                )

        attempt()
    print(f"{caller}: {sent} requests, {len(failures)} failures")  # noqa: T201  (the result of a long run)
    assert failures == [], "\n\n".join(failures[:10])
