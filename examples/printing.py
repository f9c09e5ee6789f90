"""A print shop: everything that can be said about a job. The guide's page on jobs uses it.

holdfast worker examples/printing.py        in one terminal
python examples/printing.py                 in another
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
async def jam(page: int) -> str:
    raise OSError(f"page {page} got stuck")


@task(queue="print")
async def sweep_up(title: str) -> str:
    return f"swept up after {title}"


async def submitting() -> None:
    now = await client.submit(draw(1))
    once = await client.submit(draw(2), key="page:2")  # the same key again gives the same job, for a week
    assert not (await client.submit(draw(2), key="page:2")).created
    await client.submit(draw(3), unique="page:3")  # one at a time: free again when it has ended
    await client.submit(draw(4), unique="page:4", debounce=timedelta(seconds=2))  # the last one counts
    tomorrow = datetime.now(ZoneInfo("Europe/Madrid")) + timedelta(days=1)
    later = await client.submit(draw(5), run_at=tomorrow, priority=10, owner="ann", labels={"book": "moby"})
    print(await now.result(), "|", await once.result(), "|", (await later.get()).status)


async def a_graph() -> None:
    g = Graph("book")
    first, second = g.add(draw(1)), g.add(draw(2))
    book = g.add(bind("Moby Dick", [first.result, second.result]))  # runs after both, with what they returned
    g.add(sweep_up("Moby Dick"), after=[book], on_failure="run")
    job = await client.submit(g)
    async for seen in job.watch():
        print(seen.status, seen.progress.percent)
    print([each.output for each in (await job.get()).tasks if each.name == "bind"])


async def a_batch() -> None:
    async with client.batches.open("a hundred pages", then=sweep_up("the batch")) as batch:
        await batch.submit_many(draw(page) for page in range(100))
    ended = await batch.wait()
    print(f"{ended.ended} of {ended.total} ended, {ended.failed} failed")


async def in_control() -> None:
    await client.limits.put("printers", queue="print", max_running=2)  # over all workers, from now on
    await client.pause_queue("print", reason="out of paper", by="ann")
    job = await client.submit(draw(7))
    print([(each.reason, each.about.get("why")) for each in await job.explain()])
    await client.resume_queue("print")
    await job.result()
    await (await client.submit(draw(8), delay=timedelta(hours=1))).cancel(reason="changed my mind")


async def failing() -> None:
    job = await client.submit(jam(9))
    try:
        await job.result()
    except TaskFailedError as problem:
        print(problem.status, problem.error_type)
    await job.retry()  # what failed runs again, what succeeded does not
    page = await client.jobs("state:failed type:jam since:1d")  # the search of the dashboard
    print(all(each.type == "jam" for each in page.rows))


async def main() -> None:
    async with client:
        for part in (submitting, a_graph, a_batch, in_control, failing):
            print(f"-- {part.__name__}")
            await part()


if __name__ == "__main__":
    asyncio.run(main())
