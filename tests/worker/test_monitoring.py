"""What operators switch on: probes, metrics, traces and reports, of a real worker and of the parts."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from pathlib import Path
from typing import Any
from uuid import uuid4

import instrumented_app as app
import pytest
import sentry_sdk
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from worker_processes import WorkerProcesses

from holdfast import Client, telemetry
from holdfast.engine.connection import Connection, Database
from holdfast.errors import SettingsError
from holdfast.redaction import SecretMasker
from holdfast.settings import Secret, Settings, load_settings
from holdfast.testing import wait_until
from holdfast.worker import sentry
from holdfast.worker.health import HealthServer
from holdfast.worker.metrics import ProcessMetrics, read_submit_time
from holdfast.worker.prometheus import MAX_SERIES_PER_METRIC, Counter, Gauge, Histogram, MetricRegistry
from holdfast.worker.runtime import WorkerRuntime


def fetch_url(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as problem:
        return problem.code, problem.read().decode()


LINE = re.compile(
    r'[a-z_]+(\{[a-z_]+="(\\.|[^"\\])*"(,[a-z_]+="(\\.|[^"\\])*")*\})? [0-9.e+-]+|# (HELP|TYPE) .+'
)


def test_metrics_text_is_valid_for_prometheus() -> None:
    odd = Counter("odd_total", "Odd\nnames \\ here.", ("name",))
    odd.add('a"b\\c\nd\ud800')
    odd.add("plain", amount=2.5)
    seconds = Histogram("seconds", "Times.", ("queue",), (0.1, 1))
    for value in (0.05, 0.1, 0.5, 7):
        seconds.observe("q", value=value)
    text = MetricRegistry(
        [odd, seconds, Gauge("now", "Now.", lambda: 3), Gauge("gone", "Not told.", lambda: None)]
    ).format_text()
    lines = text.splitlines()
    assert all(LINE.fullmatch(line.replace("+Inf", "0")) for line in lines), text
    assert 'odd_total{name="a\\"b\\\\c\\nd?"} 1' in lines
    assert [line for line in lines if line.startswith("seconds")] == [
        'seconds_bucket{queue="q",le="0.1"} 2',
        'seconds_bucket{queue="q",le="1"} 3',
        'seconds_bucket{queue="q",le="+Inf"} 4',
        'seconds_sum{queue="q"} 7.65',
        'seconds_count{queue="q"} 4',
    ]
    assert not any("gone" in line for line in lines)


def test_number_of_metric_series_is_limited() -> None:
    counter = Counter("c_total", "Many.", ("name",))
    for number in range(MAX_SERIES_PER_METRIC + 500):
        counter.add(str(number))
    lines = list(counter.format_lines())
    assert len(lines) == MAX_SERIES_PER_METRIC + 3
    assert 'c_total{name="(other)"} 500' in lines


def test_counters_are_thread_safe() -> None:
    counter = Counter("c_total", "Many.")

    def count() -> None:
        for _ in range(2_000):
            counter.add()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "c_total 8000" in list(counter.format_lines())


def test_telemetry_events_are_counted() -> None:
    metrics = ProcessMetrics()
    metrics.start()
    about = {"task": uuid4(), "job": uuid4(), "name": "t", "queue": "q", "attempt": 2}
    telemetry.emit("task.started", **about)
    telemetry.emit("task.finished", **about, outcome="fail", seconds=0.2, error="x")
    telemetry.emit("tasks.claimed", worker="w", claimed=3, requested=5, outcomes=0, seconds=0.01)
    telemetry.emit("database.connection_failed", error="x", retry_in=1)
    metrics.stop()
    telemetry.emit("database.connection_failed", error="x", retry_in=1)
    lines = metrics.format_text().splitlines()
    for expected in (
        'holdfast_tasks_started_total{type="t",queue="q"} 1',
        'holdfast_tasks_finished_total{type="t",queue="q",outcome="fail"} 1',
        'holdfast_task_seconds_bucket{type="t",outcome="fail",le="0.25"} 1',
        'holdfast_claimed_tasks_bucket{le="5"} 1',
        "holdfast_database_errors_total 1",
    ):
        assert expected in lines


class UnhealthyWorker:
    """A worker in a bad state."""

    def get_seconds_since_loop_ran(self) -> float:
        return 45.0

    def find_unready_reason(self) -> str | None:
        return "the database is away"

    def build_status(self) -> dict[str, Any]:
        return {"blocked": {"name": "sums"}}


def test_failing_probes_name_the_reason() -> None:
    server = HealthServer("127.0.0.1", 0, UnhealthyWorker(), lambda: "m 1\n")
    server.start()
    url = f"http://127.0.0.1:{server.port}"
    try:
        code, body = fetch_url(f"{url}/healthz")
        assert (code, json.loads(body)["problem"]) == (503, "The event loop has not run for 45 s.")
        assert json.loads(body)["blocked"] == {"name": "sums"}
        assert json.loads(fetch_url(f"{url}/readyz")[1])["problem"] == "the database is away"
        assert fetch_url(f"{url}/metrics?x=1") == (200, "m 1\n")
        assert fetch_url(f"{url}/admin")[0] == 404
        with pytest.raises(SettingsError, match="cannot be opened"):
            HealthServer("127.0.0.1", server.port, UnhealthyWorker(), str).start()
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        connection.request("POST", "/healthz", body=b"x")
        assert connection.getresponse().status == 501
        connection.close()
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as rude:
            rude.sendall(b"\xff\xfe nonsense\r\n\r\n")
            assert b"Error" in rude.recv(1000)
        assert fetch_url(f"{url}/metrics")[0] == 200
    finally:
        server.stop()


@pytest.fixture
def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


async def test_probes_work_while_a_task_blocks_the_event_loop(
    workers: WorkerProcesses, client: Client, conn: Connection, find_free_port: int
) -> None:
    workers.app = Path(app.__file__)
    worker = await workers.start("--health-port", str(find_free_port))
    url = f"http://127.0.0.1:{find_free_port}"

    def ready() -> bool:
        try:
            return fetch_url(f"{url}/readyz")[0] == 200
        except OSError:
            return False

    await wait_until(lambda: asyncio.to_thread(ready))
    assert await (await client.submit(app.double(2))).result() == 4
    blocking = await client.submit(app.block_event_loop())
    await wait_until(lambda: workers.has_recorded("blocking"))
    code, body = await asyncio.to_thread(fetch_url, f"{url}/healthz")
    assert code == 200
    assert json.loads(body)["running"] == 1
    workers.open_gate("go")
    await blocking.result()
    _, text = await asyncio.to_thread(fetch_url, f"{url}/metrics")
    lines = text.splitlines()
    assert 'holdfast_tasks_finished_total{type="double",queue="watched",outcome="succeed"} 1' in lines
    assert 'holdfast_task_wait_seconds_count{queue="watched"} 2' in lines
    assert "holdfast_ready 1" in lines
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)
    worker.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(worker.wait(), 60) == 0


async def test_wait_time_is_measured_from_the_submit(conn: Connection) -> None:
    created = await conn.fetchval(
        "select holdfast.new_id(holdfast.build_id_prefix(holdfast.now()), holdfast.get_shard_byte_hex())"
    )
    assert abs(read_submit_time(created) - time.time()) < 60


@pytest.fixture(scope="session")
def exporter() -> InMemorySpanExporter:
    """One provider for the process is all that OpenTelemetry allows."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Generator[InMemorySpanExporter]:
    exporter.clear()
    yield exporter
    exporter.clear()


async def run_until_drained(database: Database, tasks: list[Any]) -> None:
    worker = WorkerRuntime(database, {task.name: task for task in tasks}, until="drained")
    await asyncio.wait_for(worker.run(asyncio.Event()), 60)


def traced(settings: Settings, **more: str) -> Settings:
    return load_settings({"home": str(settings.home), "tracing": "on", **more}, environ={})


async def test_trace_continues_from_submit_to_run(
    url: Secret, settings: Settings, spans: InMemorySpanExporter
) -> None:
    on = traced(settings)
    async with Client(url.reveal(), settings=on) as client, Database(url, on) as database:
        with trace.get_tracer("test").start_as_current_span("request"):
            job = await client.submit(app.double(1), key="once", labels={"a": "b"})
        with trace.get_tracer("test").start_as_current_span("other request"):
            again = await client.submit(app.double(1), key="once", labels={"a": "b"})
            broken = await client.submit(app.raise_error())
            await client.submit(app.submit_another())
        assert again.id == job.id
        await run_until_drained(database, [app.double, app.raise_error, app.submit_another])
        assert (await broken.get()).status == "failed"
    rows: dict[str, ReadableSpan] = {s.name: s for s in reversed(spans.get_finished_spans())}
    request, run, inner = rows["request"], rows["run double"], rows["inside double"]
    assert request.context is not None
    assert run.context is not None
    assert run.context.trace_id == request.context.trace_id
    assert inner.parent is not None
    assert inner.parent.span_id == run.context.span_id
    assert run.attributes is not None
    assert run.attributes["holdfast.job"] == str(job.id)
    assert run.attributes["holdfast.outcome"] == "succeed"
    passed = [s for s in spans.get_finished_spans() if s.name == "run double" and s is not run]
    assert rows["run submit_another"].context is not None
    assert [s.context.trace_id for s in passed if s.context] == [rows["run submit_another"].context.trace_id]
    failed = rows["run raise_error"]
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert [event.name for event in failed.events] == ["exception"]


async def test_exceptions_are_reported_to_sentry_with_their_task(
    url: Secret, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[dict[str, Any]] = []
    dsn = "https://key@sentry.invalid/1"
    sentry_sdk.init(dsn=dsn, before_send=lambda event, _: sent.append(dict(event)) or None)  # type: ignore[func-returns-value]
    on = load_settings({"home": str(settings.home), "sentry_dsn": dsn}, environ={})
    stop = sentry.start_error_reports(on.sentry_dsn)
    async with Client(url.reveal(), settings=on) as client, Database(url, on) as database:
        job = await client.submit(app.raise_error())
        await client.submit(app.reject())
        await run_until_drained(database, [app.raise_error, app.reject])
    stop()
    sentry_sdk.init()
    assert len(sent) == 1
    assert sent[0]["exception"]["values"][-1]["value"] == "no bread"
    assert sent[0]["tags"]["holdfast.name"] == "raise_error"
    assert sent[0]["tags"]["holdfast.job"] == str(job.id)
    assert dsn.partition("@")[0] not in repr(on)


SECRETS = {"api_token": "swordfish-by-name", "nickname": "marlin-by-schema"}


async def test_sentry_gets_no_secrets_of_the_arguments(url: Secret, settings: Settings) -> None:
    sent: list[dict[str, Any]] = []
    dsn = "https://key@sentry.invalid/1"
    sentry_sdk.init(dsn=dsn, before_send=lambda event, _: sent.append(dict(event)) or None)  # type: ignore[func-returns-value]
    on = load_settings({"home": str(settings.home), "sentry_dsn": dsn}, environ={})
    stop = sentry.start_error_reports(on.sentry_dsn)
    async with Client(url.reveal(), settings=on) as client, Database(url, on) as database:
        await client.submit(app.fail_with_secrets(**SECRETS))
        await run_until_drained(database, [app.fail_with_secrets])
    stop()
    sentry_sdk.init()
    (event,) = [each for each in sent if "exception" in each]
    assert event["exception"]["values"][-1]["value"] == "cannot log in with ••• and •••"
    frames = event["exception"]["values"][-1]["stacktrace"]["frames"]
    assert any("copies" in frame.get("vars", {}) for frame in frames), "local variables are sent"
    text = json.dumps(event, default=repr)
    assert not [secret for secret in SECRETS.values() if secret in text], text


async def test_spans_get_no_secrets_of_the_arguments(
    url: Secret, settings: Settings, spans: InMemorySpanExporter
) -> None:
    on = traced(settings)
    async with Client(url.reveal(), settings=on) as client, Database(url, on) as database:
        await client.submit(app.fail_with_secrets(**SECRETS))
        await run_until_drained(database, [app.fail_with_secrets])
    (run,) = [span for span in spans.get_finished_spans() if span.name == "run fail_with_secrets"]
    (event,) = run.events
    assert event.attributes is not None
    assert event.attributes["exception.type"] == "OSError"
    assert event.attributes["exception.message"] == "cannot log in with ••• and •••"
    assert "raise OSError" in str(event.attributes["exception.stacktrace"])
    assert not [secret for secret in SECRETS.values() if secret in run.to_json()]


@pytest.mark.parametrize("module", ["opentelemetry", "sentry_sdk"])
def test_missing_sentry_sdk_is_named(
    module: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast import tracing  # noqa: PLC0415

    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(SettingsError, match=r"holdfast\[telemetry\]"):
        tracing.Tracing() if module == "opentelemetry" else sentry.start_error_reports(
            Secret("https://k@h.invalid/1")
        )


def test_an_event_that_cannot_be_masked_is_not_sent() -> None:
    """Sentry sends the original event if a processor raises an exception."""

    class BrokenMasker(SecretMasker):
        def mask_text(self, text: str) -> str:
            raise ValueError(text)

    event = sentry._mask_event(BrokenMasker(), {"message": "swordfish-by-name"}, None)
    assert "swordfish" not in str(event)
