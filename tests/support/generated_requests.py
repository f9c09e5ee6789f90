"""Valid and invalid generated requests to every route of an OpenAPI document, with schemathesis."""

from __future__ import annotations

from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import checks
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi import checks as openapi

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


def send_generated_requests(
    base_url: str, headers: dict[str, str], examples: int, *, random: bool = False
) -> tuple[int, list[str]]:
    """Send up to `examples` requests to each route. Return the number of requests and the failures.

    The same requests are sent every time, unless `random`.
    """
    schema = schemathesis.openapi.from_url(f"{base_url}/api/openapi.json")
    failures: dict[tuple[str, str, int, str], str] = {}
    sent = 0
    for result in schema.get_all_operations():
        operation: Any = result.ok()  # type: ignore[union-attr]

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=not random,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def attempt(case: Any) -> None:
            nonlocal sent
            sent += 1
            if is_event_stream(case.operation) and opens_event_stream(case, base_url, headers):
                return
            response = case.call(base_url=base_url, headers=headers, timeout=60)
            try:
                case.validate_response(response, checks=RESPONSE_CHECKS, headers=headers)
            except FailureGroup as error:
                kinds = ", ".join(type(each).__name__ for each in error.exceptions)
                # One example of each kind of failure: the same mistake fails for most requests to a route.
                failures.setdefault(
                    (case.method, case.path, response.status_code, kinds),
                    describe_failure(case, response.status_code, error),
                )

        attempt()
    return sent, list(failures.values())


def is_event_stream(operation: Any) -> bool:
    responses = operation.definition.raw.get("responses", {})
    return "text/event-stream" in responses.get("200", {}).get("content", {})


def opens_event_stream(case: Any, base_url: str, headers: dict[str, str]) -> bool:
    """Return whether the request is answered by an event stream, which never ends and is closed here."""
    request = case.as_transport_kwargs(base_url=base_url, headers=headers)
    with requests.request(**request, stream=True, timeout=60) as response:
        return response.status_code == 200 and response.headers["content-type"].startswith(
            "text/event-stream"
        )


def describe_failure(case: Any, status: int, error: FailureGroup) -> str:
    message = " | ".join(f"{type(each).__name__}: {each}" for each in error.exceptions)
    body = case.body if isinstance(case.body, (dict, list, str, int)) else ""
    return f"{case.method} {case.formatted_path} {body} -> {status} {message}"
