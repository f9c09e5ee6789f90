"""Valid and invalid generated requests to every route: no server error, and every response as documented."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Generator
from dataclasses import replace

import pytest
import uvicorn
from api_clients import bearer_headers, make_token
from book_app import SERVICE_KEY, book_job, internal_job
from generated_requests import send_generated_requests

from holdfast.server import create_app
from holdfast.settings import Secret, Settings

MAX_EXAMPLES_PER_ROUTE = int(
    os.environ.get("HOLDFAST_FUZZ_EXAMPLES", "4")
)  # per route; `make fuzz` sets a higher number


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


# The server runs in this process and uses the module `random`; Hypothesis blames the generator for it.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@pytest.mark.timeout(600 if MAX_EXAMPLES_PER_ROUTE < 100 else 4 * 3600)
@pytest.mark.parametrize("caller", ["service", "user"])
def test_no_generated_request_causes_a_server_error(base_url: str, caller: str) -> None:
    headers = bearer_headers(SERVICE_KEY) if caller == "service" else bearer_headers(make_token("ann"))
    examples = MAX_EXAMPLES_PER_ROUTE if caller == "service" else max(MAX_EXAMPLES_PER_ROUTE // 3, 1)
    # The same requests in every CI run, different ones in long runs.
    sent, failures = send_generated_requests(
        base_url, headers, examples, random=MAX_EXAMPLES_PER_ROUTE >= 100
    )
    print(f"{caller}: {sent} requests, {len(failures)} failures")  # noqa: T201  (the result of a long run)
    assert failures == [], "\n\n".join(failures[:10])
