"""A real Prometheus scrapes a real API and a real worker, and evaluates alert rules and dashboard queries."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import recorder_app
import yaml
from deploy_files import DEPLOY, find_free_port, list_alert_rules
from outside_programs import find_program
from worker_processes import WorkerProcesses

from holdfast import Client
from holdfast.settings import Secret
from holdfast.testing import wait_until

SERVICE_KEY = "k" * 40
START_TIMEOUT = timedelta(seconds=90)


def write_configuration(folder: Path, ports: dict[str, int]) -> Path:
    (folder / "key").write_text(SERVICE_KEY)
    scrapes: list[dict[str, Any]] = [
        {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        for name, port in ports.items()
    ]
    scrapes[0]["authorization"] = {"credentials_file": str(folder / "key")}
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(DEPLOY / "prometheus" / "alerts.yaml")],
        "scrape_configs": scrapes,
    }
    path = folder / "prometheus.yaml"
    path.write_text(yaml.safe_dump(configuration))
    return path


async def test_prometheus_reads_api_and_worker(url: Secret, tmp_path: Path) -> None:
    programs = Path(find_program("prometheus"))
    ports = {"holdfast-api": find_free_port(), "holdfast-worker": find_free_port()}
    own_port = find_free_port()
    variables = {**os.environ, "DATABASE_URL": url.reveal(), "HOLDFAST_SERVICE_KEY": SERVICE_KEY}
    api = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "holdfast", "api", "--port", str(ports["holdfast-api"]),
        cwd=tmp_path, env=variables, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    worker = await WorkerProcesses(url, tmp_path).start("--health-port", str(ports["holdfast-worker"]))
    prometheus = await asyncio.create_subprocess_exec(
        programs / "prometheus", f"--config.file={write_configuration(tmp_path, ports)}",
        f"--storage.tsdb.path={tmp_path / 'series'}", f"--web.listen-address=127.0.0.1:{own_port}",
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with (
            Client(url.reveal()) as client,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{own_port}") as http,
        ):
            await (await client.submit(recorder_app.record_number(7))).result()
            await check_scrape(http)
    finally:
        for process in (prometheus, worker, api):
            process.terminate()
            await process.wait()


async def check_scrape(http: httpx.AsyncClient) -> None:
    async def query(expression: str) -> list[dict[str, Any]]:
        try:
            response = await http.get("/api/v1/query", params={"query": expression})
        except httpx.TransportError:
            return []
        assert response.json()["status"] == "success", response.text
        return list(response.json()["data"]["result"])

    finished = 'holdfast_tasks_finished_total{type="record_number",outcome="succeed"} == 1'
    await wait_until(lambda: query(finished), within=START_TIMEOUT, what="the finished task")
    await wait_until(lambda: query("holdfast_workers == 1"), within=START_TIMEOUT, what="the worker")
    assert {row["metric"]["job"] for row in await query("up == 1")} == {"holdfast-api", "holdfast-worker"}
    rules = (await http.get("/api/v1/rules")).json()["data"]["groups"][0]["rules"]
    assert [rule["name"] for rule in rules] == [rule["alert"] for rule in list_alert_rules()]
    await wait_until(lambda: all_rules_are_healthy(http), within=START_TIMEOUT, what="evaluated rules")
    for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                await query(target["expr"].replace("$__rate_interval", "1m").replace("$queue", ".*"))


async def all_rules_are_healthy(http: httpx.AsyncClient) -> bool:
    rules = (await http.get("/api/v1/rules")).json()["data"]["groups"][0]["rules"]
    return all(rule["health"] == "ok" and not rule["alerts"] for rule in rules)
