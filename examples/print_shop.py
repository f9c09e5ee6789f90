"""A print shop: submitting jobs, graphs and batches, and controlling them.

holdfast worker examples/print_shop.py        in one terminal
python examples/print_shop.py                 in another
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from holdfast import Client, Graph, TaskFailedError, task

client = Client()


@task(queue="print")
async def draw(page: int) -> str:
    return f"page {page}"


@task(queue="print")
async def bind(title: str, pages: list[str]) -> str:
    return f"{title}: {', '.join(pages)}"


@task(queue="print", retries=0)
async def fail_page(page: int) -> str:
    raise OSError(f"page {page} is stuck")


@task(queue="print")
async def clean_up(title: str) -> str:
    return f"cleaned up after {title}"


async def submit_jobs() -> None:
    now = await client.submit(draw(1))
    once = await client.submit(draw(2), key="page:2")  # the same key returns the same job, for a week
    assert not (await client.submit(draw(2), key="page:2")).created
    await client.submit(draw(3), unique="page:3")  # one at a time: the key is free again when the job ends
    await client.submit(draw(4), unique="page:4", debounce=timedelta(seconds=2))  # only the last submit runs
    tomorrow = datetime.now(ZoneInfo("Europe/Madrid")) + timedelta(days=1)
    later = await client.submit(draw(5), run_at=tomorrow, priority=10, owner="ann", labels={"book": "moby"})
    print(await now.result(), "|", await once.result(), "|", (await later.get()).status)


async def submit_with_options() -> None:
    careful = await client.submit(draw(6).options(retries=9, timeout=30, priority=5))
    pages = await client.submit_many(draw(page).options(key=f"page:{page}") for page in (7, 8))
    print(await careful.result(), [page.created for page in pages])


async def submit_graph() -> None:
    g = Graph("book")
    first, second = g.add(draw(1)), g.add(draw(2))
    book = g.add(bind("Moby Dick", [first.result, second.result]))  # runs after both, with their results
    g.add(clean_up("Moby Dick"), after=[book], on_failure="run")
    job = await client.submit(g)
    async for seen in job.watch():
        print(seen.status, seen.progress.percent)
    print([each.output for each in (await job.get()).tasks if each.name == "bind"])


async def submit_batch() -> None:
    async with client.batches.open("a hundred pages", then=clean_up("the batch")) as batch:
        await batch.submit_many(draw(page) for page in range(100))
    ended = await batch.wait()
    print(f"{ended.ended} of {ended.total} ended, {ended.failed} failed")


async def control_jobs() -> None:
    await client.limits.put("printers", queue="print", max_running=2)  # across all workers
    await client.pause_queue("print", reason="out of paper", by="ann")
    job = await client.submit(draw(7))
    print([(each.reason, each.details.get("paused_reason")) for each in await job.explain()])
    await client.resume_queue("print")
    await job.result()
    await (await client.submit(draw(8), delay=timedelta(hours=1))).cancel(reason="changed my mind")


async def retry_failed_job() -> None:
    job = await client.submit(fail_page(9))
    try:
        await job.result()
    except TaskFailedError as error:
        print(error.status, error.error_type)
    await job.retry()  # runs the failed tasks again
    page = await client.search_jobs("state:failed type:fail_page since:1d")  # the search of the dashboard
    print(all(each.type == "fail_page" for each in page.rows))


async def main() -> None:
    async with client:
        for part in (
            submit_jobs,
            submit_with_options,
            submit_graph,
            submit_batch,
            control_jobs,
            retry_failed_job,
        ):
            print(f"-- {part.__name__}")
            await part()


if __name__ == "__main__":
    asyncio.run(main())
