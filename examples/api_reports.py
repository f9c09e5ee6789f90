"""An HTTP API with your own job type. Run `uvicorn api_reports:app` and `holdfast worker api_reports`.

    curl -X POST localhost:8000/api/jobs/start -H "Authorization: Bearer $TOKEN" \
         -H "Content-Type: application/json" -d '{"type": "report", "params": {"pages": ["a", "b"]}}'
"""

from __future__ import annotations

import msgspec

from holdfast import Ctx, Graph, PublicError, job, task
from holdfast.server import create_app


class Order(msgspec.Struct):
    pages: list[str]
    title: str = "Report"


@task(queue="reports", retries=2)
async def write(ctx: Ctx, page: str) -> str:
    if not page.strip():
        raise PublicError("A page needs a name.")  # users see the message of this error type only
    ctx.progress(50, phase="writing", message=page)
    return f"<p>{page}</p>"


@task(queue="reports")
async def bind(title: str, pages: list[str]) -> str:
    return f"<h1>{title}</h1>{''.join(pages)}"


@job("report", params=Order, public=True)
def report(order: Order) -> Graph:
    """Write the pages in parallel, then bind them to one report."""
    graph = Graph("report")
    pages = [graph.add(write(page)) for page in order.pages]
    graph.add(bind(order.title, [page.result for page in pages]))
    return graph


app = create_app(job_types=[report])
