"""Endpoints for metrics: Prometheus text at `/metrics` and JSON at `/api/stats`.

`/metrics` has the metrics of the database and the counters of this process. The metrics of the database are
the same in every API process: scrape them from one of the processes only.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.engine import overview, queues, workers
from holdfast.engine.connection import Connection
from holdfast.model import Json
from holdfast.server.api.identity import read_as_caller, transaction_as_caller
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.metric_sources import MetricSample, MetricSource
from holdfast.server.api.operations import api_operation
from holdfast.server.api.replica_reads import ReadSource
from holdfast.server.api.services import get_services
from holdfast.worker.metrics import METRICS_CONTENT_TYPE
from holdfast.worker.prometheus import Counter, MetricRegistry

_log = logging.getLogger("holdfast.server")


class LabeledGauge(Counter):
    """A gauge with one value per set of labels."""

    kind = "gauge"


@api_operation(
    "Get metrics in the Prometheus text format",
    tag="metrics",
    access="service",
    scope="metrics",
    media_type="text/plain",
)
async def get_prometheus_metrics(request: Request) -> Response:
    services = get_services(request)
    if services.shards is None:
        services.metrics.start()
    (queue_rows, totals), read_source = await read_as_caller(request, _read_engine_state)
    async with transaction_as_caller(request) as connection:  # autoscalers decide with it
        desired = await _build_desired_workers_gauge(connection, queue_rows)
    gauges = _build_gauges(queue_rows, totals, services.event_hub.subscription_count)
    added: list[LabeledGauge] = []
    if services.get_replica_reads().has_replica:
        added += _build_replica_gauges(read_source)
    for source in services.metric_sources:
        added += await _read_metric_source(request, source)
    text = MetricRegistry([*gauges, desired, *added]).format_text()
    if services.shards is None:  # otherwise those of the process follow once, after those of all shards
        text += services.metrics.format_text()
    return Response(text, media_type=METRICS_CONTENT_TYPE)


async def _read_engine_state(connection: Connection) -> tuple[list[dict[str, Json]], dict[str, Json]]:
    return await queues.list_task_queues(connection), await overview.get_engine_metrics(connection)


def _build_replica_gauges(source: ReadSource) -> list[LabeledGauge]:
    used = LabeledGauge("holdfast_read_replica_used", "1 if metrics come from the read replica, else 0.")
    used.add(amount=1 if source.name == "replica" else 0)
    age = LabeledGauge("holdfast_read_replica_age_seconds", "How far the read replica is behind.")
    if source.name == "replica" and source.age_s is not None:
        age.add(amount=max(source.age_s, 0.0))
    return [used, age]


async def _read_metric_source(request: Request, source: MetricSource) -> list[LabeledGauge]:
    """Ask one source. A source that fails leaves its metrics out, and the others are still served."""
    try:
        async with transaction_as_caller(request) as connection:
            samples = await source(connection, get_services(request).settings.systems_schema)
    except Exception as error:
        _log.warning("A metric source failed: %s: %s", type(error).__name__, error)
        return []
    return _build_sample_gauges(samples)


def _build_sample_gauges(samples: Sequence[MetricSample]) -> list[LabeledGauge]:
    gauges: dict[str, LabeledGauge] = {}
    for sample in samples:
        gauge = gauges.setdefault(sample.name, LabeledGauge(sample.name, sample.text, tuple(sample.labels)))
        gauge.add(*sample.labels.values(), amount=sample.value)
    return list(gauges.values())


async def _build_desired_workers_gauge(
    connection: Connection, queue_rows: list[dict[str, Json]]
) -> LabeledGauge:
    desired = LabeledGauge(
        "holdfast_queue_desired_workers", "Workers with 10 slots that the queue can keep busy.", ("queue",)
    )
    for queue in queue_rows:
        name = queue["queue"]
        has_tasks = queue["ready"] or queue["running"]
        desired.add(name, amount=await workers.count_desired_workers(connection, name) if has_tasks else 0)
    return desired


def _build_gauges(
    queue_rows: list[dict[str, Json]], totals: dict[str, Json], stream_count: int
) -> list[LabeledGauge]:
    ready = LabeledGauge("holdfast_queue_ready", "Ready tasks; an estimate above 10,000.", ("queue",))
    running = LabeledGauge("holdfast_queue_running", "Running tasks.", ("queue",))
    scheduled = LabeledGauge("holdfast_queue_scheduled", "Tasks with a start time in the future.", ("queue",))
    oldest = LabeledGauge(
        "holdfast_queue_oldest_ready_seconds", "Waiting time of the oldest ready task.", ("queue",)
    )
    paused = LabeledGauge("holdfast_queue_paused", "1 if the queue is paused, else 0.", ("queue",))
    for queue in queue_rows:
        name = queue["queue"]
        ready.add(name, amount=queue["ready"])
        running.add(name, amount=queue["running"])
        scheduled.add(name, amount=queue["scheduled"])
        oldest.add(name, amount=max(queue["oldest_s"] or 0, 0))
        paused.add(name, amount=1 if queue.get("paused_at") else 0)
    in_use = LabeledGauge("holdfast_limit_in_use", "Running tasks that count against the limit.", ("limit",))
    for limit in totals["limits"]:
        in_use.add(limit["rule"], amount=limit["running"])
    live_workers = LabeledGauge("holdfast_workers", "Workers with a heartbeat in the last two minutes.")
    live_workers.add(amount=totals["workers"])
    streams = LabeledGauge("holdfast_api_streams", "Open event streams of this process.")
    streams.add(amount=stream_count)
    return [ready, running, scheduled, oldest, paused, in_use, live_workers, streams]


@api_operation(
    "Get the current numbers of tasks and workers, and the limits in use, as JSON",
    tag="metrics",
    access="service",
    scope="metrics",
    response=dict[str, Any],
)
async def get_engine_metrics_as_json(request: Request) -> Response:
    totals, source = await read_as_caller(request, overview.get_engine_metrics)
    return json_response(totals, headers=source.headers)


def build_metrics_routes() -> list[BaseRoute]:
    return [
        Route("/metrics", get_prometheus_metrics, methods=["GET"]),
        Route("/api/stats", get_engine_metrics_as_json, methods=["GET"]),
    ]
