"""Dashboards and alert rules, compared with the metrics that a real API and a real worker export."""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import promql_parser
import pytest
import recorder_app
from deploy_files import DEPLOY, ROOT, find_free_port, list_alert_rules, load_yaml, run_tool
from outside_programs import find_program
from worker_processes import WorkerProcesses

from holdfast import Client, telemetry
from holdfast.engine.connection import Database
from holdfast.server import create_app
from holdfast.settings import Secret, Settings
from holdfast.systems import mount
from holdfast.testing import wait_until
from holdfast.worker.metrics import ProcessMetrics

RULES = list_alert_rules()
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
SAMPLE = re.compile(r"^([a-z_]+)(?:\{(.*)\})? ", re.MULTILINE)
Labels = dict[str, set[str]]
# Events with all their fields, so that every counter has a series with its labels.
EVENTS: dict[str, dict[str, Any]] = {
    "task.started": {"name": "t", "queue": "q", "attempt": 1, "task": uuid4()},
    "task.finished": {"name": "t", "queue": "q", "outcome": "succeed", "seconds": 1.0},
    "tasks.claimed": {"requested": 1, "claimed": 1, "seconds": 0.1},
    "worker.event_loop_blocked": {"name": "t"},
    "message.finished": {"queue": "q", "outcome": "done", "seconds": 1.0},
    "api.request_completed": {"method": "GET", "status": 200, "seconds": 0.1},
    "provider.call_finished": {
        "kind": "text", "provider": "p", "model": "m", "outcome": "succeeded",
        "tokens_in": 1, "tokens_out": 1, "audio_s": 1, "images": 1, "cost": 1, "seconds": 1.0,
    },
}  # fmt: skip
SCRAPE_LABELS = {"instance", "job", "le"}


def parse_metrics(text: str) -> Labels:
    """Return the names of the series of a scrape with the names of their labels."""
    labels: Labels = {}
    for name, pairs in SAMPLE.findall(text):
        labels.setdefault(name, set()).update(re.findall(r'(\w+)="', pairs))
    return labels


async def scrape_worker(port: int) -> Labels:
    def read() -> str | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
                return str(response.read().decode())
        except OSError:
            return None

    return parse_metrics(await wait_until(read, within=timedelta(seconds=60)))


async def scrape_api(url: Secret) -> Labels:
    settings = Settings(database_url=url, service_key=Secret("k" * 40))
    async with Database(url, settings) as database:
        app = create_app(settings, database=database, **mount({}))
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://api") as http:
            response = await http.get("/metrics", headers={"authorization": f"Bearer {'k' * 40}"})
    assert response.status_code == 200
    return parse_metrics(response.text)


def read_process_metrics() -> Labels:
    metrics = ProcessMetrics()
    metrics.start()
    for name, fields in EVENTS.items():
        telemetry.emit(name, **fields)
    metrics.stop()
    return parse_metrics(metrics.format_text())


def read_system_metrics() -> Labels:
    """Return the metrics of systems, which appear with their data only, from their source."""
    labels: Labels = {}
    for path in (ROOT / "src" / "holdfast" / "systems").rglob("*_metrics.py"):
        for name in re.findall(r'MetricSample\(\s*"(\w+)"', path.read_text()):
            labels[name] = {"status"}
    return labels


@pytest.fixture
async def exported(url: Secret, tmp_path: Path) -> Labels:
    """What an API and a worker export while a task runs that counts against a limit."""
    processes, port = WorkerProcesses(url, tmp_path), find_free_port()
    async with Client(url.reveal()) as client:
        await client.limits.put("one", queue="record", max_running=1)
        await client.submit(recorder_app.wait_for_gate("gate"))
        worker = await processes.start("--health-port", str(port))
        running = partial(processes.has_recorded, "began", "gate", 1)
        await wait_until(running, within=timedelta(seconds=60))
        scrapes = [await scrape_api(url), await scrape_worker(port)]
        processes.open_gate("gate")
        worker.terminate()
        await worker.wait()
    labels: Labels = {}
    for scraped in (read_process_metrics(), read_system_metrics(), *scrapes):
        for name, names in scraped.items():
            labels.setdefault(name, set()).update(names)
    return labels


def list_selectors(expression: Any) -> Iterator[Any]:
    """Yield the selectors of series of a PromQL expression."""
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression
        return
    parts = [getattr(expression, name, None) for name in ("expr", "lhs", "rhs", "vector_selector")]
    for part in [*parts, *getattr(expression, "args", [])]:
        if part is not None:
            yield from list_selectors(part)


def find_unknown_names(query: str, exported: Labels) -> list[str]:
    query = query.replace("$__rate_interval", "5m").replace("$queue", ".*")
    selectors = list(list_selectors(promql_parser.parse(query)))
    unknown = [selector.name for selector in selectors if selector.name not in exported]
    known_labels = SCRAPE_LABELS.union(*(exported.get(selector.name, set()) for selector in selectors))
    grouped = [name for names in re.findall(r"(?:by|on) \(([^)]*)\)", query) for name in names.split(", ")]
    matched = [matcher.name for selector in selectors for matcher in selector.matchers.matchers]
    return unknown + [name for name in [*grouped, *matched] if name not in known_labels]


async def test_dashboards_and_alerts_use_exported_metrics(exported: Labels) -> None:
    queries = {f"alert {rule['alert']}": rule["expr"] for rule in RULES}
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                queries[f"{path.stem}: {panel['title']} {target['refId']}"] = target["expr"]
    assert len(queries) > 60
    assert {
        title: names for title, query in queries.items() if (names := find_unknown_names(query, exported))
    } == {}
    assert find_unknown_names("sum by (nobody) (holdfast_nothing)", exported) == [
        "holdfast_nothing",
        "nobody",
    ]


def test_every_engine_metric_is_on_a_dashboard() -> None:
    text = " ".join(path.read_text() for path in DASHBOARDS)
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in read_process_metrics()}
    assert {name for name in families if name not in text} == set()


def test_dashboards_are_written_by_their_script() -> None:
    checked = run_tool(sys.executable, ROOT / "scripts" / "grafana_dashboards.py", "--check")
    assert checked.returncode == 0, checked.stdout


@pytest.fixture(scope="session")
def promtool() -> Path:
    return Path(find_program("prometheus")) / "promtool"


def test_alert_rules_fire_and_stay_silent(promtool: Path) -> None:
    tested = run_tool(promtool, "test", "rules", DEPLOY / "prometheus" / "alerts_test.yaml")
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_alert_has_a_test_that_fires_and_one_that_does_not() -> None:
    fires: dict[str, set[bool]] = {rule["alert"]: set() for rule in RULES}
    for group in load_yaml(DEPLOY / "prometheus" / "alerts_test.yaml")["tests"]:
        for check in group["alert_rule_test"]:
            fires[check["alertname"]].add(bool(check["exp_alerts"]))
    # A group whose expected alerts leave out one of its series shows silence as well.
    assert {name for name, outcomes in fires.items() if True not in outcomes} == set()


def test_prometheus_configuration_is_valid(promtool: Path) -> None:
    checked = run_tool(promtool, "check", "config", "--syntax-only", DEPLOY / "docker" / "prometheus.yaml")
    assert checked.returncode == 0, checked.stderr
