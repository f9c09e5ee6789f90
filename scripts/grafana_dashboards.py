"""Write the Grafana dashboards of deploy/grafana/dashboards from the list below; --check compares instead.

A panel is a title, a unit and its PromQL queries. Every API process exports the numbers of the database, so queries of
queues take the maximum over the processes.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "deploy" / "grafana" / "dashboards"
COLUMNS, PANEL_WIDTH, PANEL_HEIGHT = 24, 8, 8


@dataclass(frozen=True)
class Panel:
    """One graph: its queries, each with the legend of its lines."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"


def quantiles(metric: str, by: str = "") -> tuple[tuple[str, str], ...]:
    """Return the queries of median and p99 of a histogram."""
    labels = f"le, {by}" if by else "le"
    legend = f" {{{{{by}}}}}" if by else ""
    return tuple(
        (
            f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket[$__rate_interval])))",
            f"{name}{legend}",
        )
        for name, share in (("p50", 0.5), ("p99", 0.99))
    )


def rate(metric: str, by: str, matcher: str = "") -> tuple[tuple[str, str], ...]:
    """Return the query of a counter per second."""
    legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    return ((f"sum by ({by}) (rate({metric}{matcher}[$__rate_interval]))", legend),)


def per_queue(metric: str) -> tuple[tuple[str, str], ...]:
    """Return the query of a gauge of the database for each queue."""
    return ((f'max by (queue) ({metric}{{queue=~"$queue"}})', "{{queue}}"),)


FAILED = '{outcome=~"fail|reject|crash"}'
IN_QUEUE = '{queue=~"$queue"}'
DASHBOARDS: dict[str, tuple[str, list[Panel]]] = {
    "overview": ("Holdfast: overview", [
        Panel("Workers alive", "short", (("max(holdfast_workers)", "workers"),), "stat"),
        Panel("Ready tasks", "short", (("sum(max by (queue) (holdfast_queue_ready))", "ready"),), "stat"),
        Panel("Oldest ready task", "s", (("max(holdfast_queue_oldest_ready_seconds)", "oldest"),), "stat"),
        Panel("Attempts by outcome", "ops", rate("holdfast_tasks_finished_total", "outcome")),
        Panel("Failed attempts by task", "ops", rate("holdfast_tasks_finished_total", "type", FAILED)),
        Panel("Wait from submit to start", "s", quantiles("holdfast_task_wait_seconds")),
        Panel("API requests by status", "reqps", rate("holdfast_api_requests_total", "status")),
        Panel("API response time", "s", quantiles("holdfast_api_request_seconds")),
        Panel("Open event streams", "short", (("sum(holdfast_api_streams)", "streams"),)),
    ]),
    "queues": ("Holdfast: queues", [
        Panel("Ready", "short", per_queue("holdfast_queue_ready")),
        Panel("Running", "short", per_queue("holdfast_queue_running")),
        Panel("Scheduled", "short", per_queue("holdfast_queue_scheduled")),
        Panel("Oldest ready task", "s", per_queue("holdfast_queue_oldest_ready_seconds")),
        Panel("Desired workers of ten slots", "short", per_queue("holdfast_queue_desired_workers")),
        Panel("Paused", "bool", per_queue("holdfast_queue_paused")),
        Panel("Attempts", "ops", rate("holdfast_tasks_finished_total", "queue, outcome", IN_QUEUE)),
        Panel("Wait from submit to start", "s", quantiles("holdfast_task_wait_seconds", "queue")),
        Panel("Limits in use", "short", (("max by (limit) (holdfast_limit_in_use)", "{{limit}}"),)),
        Panel("Messages by outcome", "ops", rate("holdfast_messages_finished_total", "queue, outcome", IN_QUEUE)),
        Panel("Run time of consumers", "s", quantiles("holdfast_message_seconds", "queue")),
    ]),
    "workers": ("Holdfast: workers", [
        Panel("Used slots", "percentunit", (("sum(holdfast_tasks_running) / sum(holdfast_slots)", "used"),)),
        Panel("Running attempts", "short", (("holdfast_tasks_running", "{{instance}}"),)),
        Panel("Ready to work", "bool", (("holdfast_ready", "{{instance}}"),)),
        Panel("Attempts started by task", "ops", rate("holdfast_tasks_started_total", "type")),
        Panel("Run time of attempts", "s", quantiles("holdfast_task_seconds", "type")),
        Panel("Lag of event loops", "s", (("holdfast_loop_lag_seconds", "{{instance}}"),)),
        Panel("Blocked event loops by task", "ops", rate("holdfast_loop_blocked_total", "type")),
        Panel("Memory", "bytes", (("process_resident_memory_bytes", "{{instance}}"),)),
        Panel("CPU", "percentunit", (("rate(process_cpu_seconds_total[$__rate_interval])", "{{instance}}"),)),
        Panel("Open files", "percentunit", (("process_open_fds / process_max_fds", "{{instance}}"),)),
        Panel("Versions", "short", (("count by (version) (holdfast_info)", "{{version}}"),)),
        Panel("Since start", "s", (("time() - process_start_time_seconds", "{{instance}}"),)),
    ]),
    "systems": ("Holdfast: systems and providers", [
        Panel("Calls of providers", "ops", rate("holdfast_provider_calls_total", "kind, provider, outcome")),
        Panel("Time of provider calls", "s", quantiles("holdfast_provider_call_seconds", "kind")),
        Panel("Units of providers", "short", rate("holdfast_provider_units_total", "kind, unit")),
        Panel("Cost of providers in an hour", "short", (("sum by (kind, model) (increase(holdfast_provider_cost_total[1h]))", "{{kind}} {{model}}"),)),
        Panel("Media by status", "short", (("max by (status) (holdfast_media_shares)", "{{status}}"),)),
        Panel("Media completed in the last hour", "short", (("max(holdfast_media_completed_last_hour)", "completed"),)),
        Panel("Media failure ratio", "percentunit", (("max(holdfast_media_failure_ratio)", "failed"),)),
        Panel("Media download time", "s", (("max(holdfast_media_download_seconds)", "mean"),)),
        Panel("Clips by status", "short", (("max by (status) (holdfast_clips)", "{{status}}"),)),
        Panel("Clips ended in the last hour", "short", (("max by (status) (holdfast_clips_ended_last_hour)", "{{status}}"),)),
        Panel("Wait of clips", "s", (("max(holdfast_clips_wait_seconds)", "oldest"),)),
    ]),
    "database": ("Holdfast: database", [
        Panel("Time of claims and outcomes", "s", quantiles("holdfast_claim_seconds")),
        Panel("Round trips", "ops", (("sum(rate(holdfast_claim_seconds_count[$__rate_interval]))", "claims"),)),
        Panel("Tasks per claim", "short", quantiles("holdfast_claimed_tasks")),
        Panel("Outcomes that wait for the database", "short", (("holdfast_outbox_outcomes", "{{instance}}"),)),
        Panel("Outages", "short", (("sum(increase(holdfast_database_errors_total[$__rate_interval]))", "outages"),)),
        Panel("Lost leases", "ops", (("sum(rate(holdfast_leases_lost_total[$__rate_interval]))", "lost"),)),
        Panel("Refused outcomes", "ops", (("sum(rate(holdfast_outcomes_refused_total[$__rate_interval]))", "refused"),)),
    ]),
}  # fmt: skip


def build_panel(number: int, panel: Panel) -> dict[str, Any]:
    per_row = COLUMNS // PANEL_WIDTH
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "id": number + 1,
        "type": panel.kind,
        "title": panel.title,
        "datasource": source,
        "gridPos": {
            "x": number % per_row * PANEL_WIDTH, "y": number // per_row * PANEL_HEIGHT, "w": PANEL_WIDTH, "h": PANEL_HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": source, "expr": query, "legendFormat": legend}
            for index, (query, legend) in enumerate(panel.queries)
        ],
    }  # fmt: skip


def build_dashboard(name: str) -> dict[str, Any]:
    title, panels = DASHBOARDS[name]
    variables: list[dict[str, Any]] = [
        {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    ]
    if name == "queues":
        query = "label_values(holdfast_queue_ready, queue)"
        variables.append({
            "name": "queue", "label": "Queue", "type": "query", "query": query, "refresh": 2, "multi": True, "includeAll": True,
            "allValue": ".*", "current": {"text": "All", "value": "$__all"}, "datasource": {"type": "prometheus", "uid": "${source}"},
        })  # fmt: skip
    return {
        "uid": f"holdfast-{name}",
        "title": title,
        "tags": ["holdfast"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": variables},
        "links": [
            {
                "type": "dashboards",
                "tags": ["holdfast"],
                "title": "Holdfast",
                "asDropdown": True,
                "includeVars": True,
            }
        ],
        "panels": [build_panel(number, panel) for number, panel in enumerate(panels)],
    }


def main() -> int:
    outdated: list[str] = []
    for name in DASHBOARDS:
        path = FOLDER / f"{name}.json"
        text = json.dumps(build_dashboard(name), indent=1) + "\n"
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.is_file() or path.read_text() != text:
            outdated.append(path.name)
    if outdated:
        print(f"run scripts/grafana_dashboards.py: {', '.join(outdated)}")
    return 1 if outdated else 0


if __name__ == "__main__":
    sys.exit(main())
