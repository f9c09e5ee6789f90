"""`/metrics`: what the database knows, and what this process counted, for Prometheus to collect.

The figures of the database are the same from every API process; let one of them be scraped for those.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.engine import insight, operate
from holdfast.model import Json
from holdfast.server.api.identity import transaction_as_caller
from holdfast.server.api.operations import api_operation
from holdfast.server.api.services import get_services
from holdfast.worker.metrics import CONTENT_TYPE
from holdfast.worker.prometheus import Counter, Registry


class Levels(Counter):
    """Figures read from elsewhere, one for each set of labels."""

    kind = "gauge"


@api_operation(
    "Figures for Prometheus",
    tag="figures",
    access="service",
    scope="metrics",
    media_type="text/plain",
)
async def metrics(request: Request) -> Response:
    services = get_services(request)
    services.metrics.start()
    async with transaction_as_caller(request) as connection:
        queues = await operate.list_task_queues(connection)
        whole = await insight.metrics(connection)
    read = Registry(_levels(queues, whole, services.event_hub.subscription_count))
    return Response(read.text() + services.metrics.text(), media_type=CONTENT_TYPE)


def _levels(queues: list[dict[str, Json]], whole: dict[str, Json], streams: int) -> list[Levels]:
    ready = Levels("holdfast_queue_ready", "Tasks that could run now, counted up to 10,000.", ("queue",))
    running = Levels("holdfast_queue_running", "Tasks that run.", ("queue",))
    scheduled = Levels("holdfast_queue_scheduled", "Tasks that wait for their time.", ("queue",))
    oldest = Levels("holdfast_queue_oldest_ready_seconds", "How long the first in line waits.", ("queue",))
    paused = Levels("holdfast_queue_paused", "1 while a queue is paused.", ("queue",))
    for queue in queues:
        name = queue["queue"]
        ready.add(name, amount=queue["ready"])
        running.add(name, amount=queue["running"])
        scheduled.add(name, amount=queue["scheduled"])
        oldest.add(name, amount=max(queue["oldest_s"] or 0, 0))
        paused.add(name, amount=1 if queue.get("paused_at") else 0)
    in_use = Levels("holdfast_limit_in_use", "Leases that a limit counts.", ("limit",))
    for limit in whole["limits"]:
        in_use.add(limit["rule"], amount=limit["running"])
    workers = Levels("holdfast_workers", "Workers seen in the last two minutes.")
    workers.add(amount=whole["workers"])
    open_streams = Levels("holdfast_api_streams", "Event streams open in this process.")
    open_streams.add(amount=streams)
    return [ready, running, scheduled, oldest, paused, in_use, workers, open_streams]


def routes() -> list[BaseRoute]:
    return [Route("/metrics", metrics, methods=["GET"])]
