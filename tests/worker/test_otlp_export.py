"""Telemetry of a real API and a real worker, received over OTLP: one trace from request to provider."""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path

import httpx
import traced_app
from deploy_files import find_free_port
from otlp_receiver import OtlpReceiver, run_otlp_receiver

from holdfast.settings import Secret
from holdfast.testing import wait_until

SERVICE_KEY = "k" * 40
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
START_TIMEOUT = timedelta(seconds=60)
# The worker ends when all is done; what it has collected is sent then.
EXPECTED_SPANS = ["POST /api/jobs", "run parent", "run child", "call text remote"]


async def start_api(
    url: Secret, receiver: OtlpReceiver, port: int, folder: Path
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "holdfast", "api", traced_app.__file__, "--port", str(port),
        cwd=folder, env=build_environment(url, receiver),
    )  # fmt: skip


def build_environment(url: Secret, receiver: OtlpReceiver) -> dict[str, str]:
    return {
        **os.environ,
        "DATABASE_URL": url.reveal(),
        "HOLDFAST_SERVICE_KEY": SERVICE_KEY,
        "HOLDFAST_OTLP_ENDPOINT": receiver.url,
    }


async def submit_over_http(port: int) -> None:
    headers = {"authorization": f"Bearer {SERVICE_KEY}", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:

        async def is_listening() -> bool:
            try:
                return (await http.get("/healthz")).status_code == 200
            except httpx.TransportError:
                return False

        await wait_until(is_listening, within=START_TIMEOUT)
        job = {"type": "parent", "queue": "traced", "args": {"text": "hello"}}
        response = await http.post("/api/jobs", json=job, headers=headers)
        assert response.status_code == 202, response.text


async def test_one_trace_from_request_to_provider_call(url: Secret, tmp_path: Path) -> None:
    port = find_free_port()
    with run_otlp_receiver() as receiver:
        api = await start_api(url, receiver, port, tmp_path)
        await submit_over_http(port)
        api.terminate()
        assert await api.wait() == 0
        worker = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "holdfast", "worker", traced_app.__file__, "--drain",
            env=build_environment(url, receiver),
        )  # fmt: skip
        assert await worker.wait() == 0
    spans = [receiver.find_span(name) for name in EXPECTED_SPANS]
    assert [span and span.trace for span in spans] == [TRACE] * 4, receiver.spans
    request, parent, _, call = [span for span in spans if span is not None]
    assert request.parent == "00f067aa0ba902b7"
    assert request.service == "holdfast-api"
    assert parent.parent == request.id
    child = receiver.find_span("run child")
    assert child is not None
    assert call.parent == child.id
    assert not [span for span in receiver.spans if "healthz" in span.name]
    assert {
        ("holdfast-api", "http.server.request.duration"),
        ("holdfast-worker", "holdfast.task.duration"),
        ("holdfast-worker", "holdfast.provider.call.duration"),
    } <= receiver.metrics
    assert any(
        '"event":"worker.started"' in text for service, text in receiver.logs if service == "holdfast-worker"
    )
