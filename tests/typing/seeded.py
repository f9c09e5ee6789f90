"""Mistakes that both type checkers must catch, and nothing else. A line with one ends with `# wrong`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import assert_type
from uuid import UUID

from holdfast import (
    BlockingJobHandle,
    Client,
    Ctx,
    Graph,
    Job,
    JobHandle,
    Lifespan,
    Message,
    RetryPolicy,
    Snooze,
    lifespan,
    task,
)


@dataclass
class Shot:
    key: str
    width: int


@dataclass
class Browser:
    version: str


@task(queue="browser", retries=5, timeout=timedelta(minutes=1))
async def screenshot(ctx: Ctx, url: str, width: int = 1280) -> Shot:
    ctx.progress(0, 2, phase="capture", message=url)
    return Shot(url, width)


@task
async def caption(ctx: Ctx[Browser], shot: Shot) -> str:
    assert_type(ctx.state, Browser)
    if ctx.attempt == 1:
        raise Snooze(timedelta(minutes=1))
    return ctx.state.version


@task(retry=RetryPolicy(retries=2))
def double(x: int) -> int:
    return 2 * x


@task(name="other")
def without(x: int, y: str = "") -> None: ...


async def right(client: Client) -> None:
    job = await client.submit(screenshot("https://e.example", width=800), key="k", delay=timedelta(seconds=1))
    assert_type(job, JobHandle[Shot])
    assert_type(await job.result(), Shot)
    assert_type(await (await client.submit(double(2))).result(), int)
    assert_type(await client.submit_many([double(1), double(2)]), list[JobHandle[int]])
    g = Graph("page")
    shot = g.add(screenshot("https://e.example"))
    words = g.add(caption(shot.result), after=[shot])
    assert_type(words.result, str)
    await client.submit(g)
    await client.submit(without(1, y="a"))


def right_without_an_event_loop(client: Client) -> None:
    job = client.blocking.submit(screenshot("https://e.example"), delay=timedelta(seconds=1))
    assert_type(job, BlockingJobHandle[Shot])
    assert_type(job.result(), Shot)
    assert_type(client.blocking.submit_many([double(1)]), list[BlockingJobHandle[int]])
    for state in job.watch():
        assert_type(state, Job)
    with client.blocking.batches.open("numbers", then=double(1)) as batch:
        assert_type(batch.submit(double(2)).result(), int)
    assert_type(client.blocking.queues.read("letters", type=Shot), list[Message[Shot]])
    with client.blocking.files.open(job.id) as reader:
        assert_type(reader.read(), bytes)


def mistakes_without_an_event_loop(client: Client) -> None:
    client.blocking.submit(double(1), kee="k")  # wrong
    text: str = client.blocking.submit(double(1)).result()  # wrong
    client.blocking.queues.send("letters", text, delay="5")  # wrong
    client.blocking.limits.put("one", max_runing=1)  # wrong
    client.blocking.connection()  # wrong


async def mistakes(client: Client) -> None:
    await double(1)  # wrong
    double.delay(1)  # wrong
    screenshot(3)  # wrong
    screenshot("https://e.example", widht=3)  # wrong
    screenshot("https://e.example", width="wide")  # wrong
    screenshot()  # wrong
    double("x")  # wrong
    without(1, z=2)  # wrong
    await client.submit(double(1), kee="k")  # wrong
    await client.submit(double(1), delay="5")  # wrong
    await client.submit(double)  # wrong
    g = Graph("page")
    number = g.add(double(1))
    g.add(caption(number.result))  # wrong
    text: str = await (await client.submit(double(1))).result()  # wrong
    assert text


@task(queu="browser")  # wrong
def misspelt() -> None: ...


@task(retries="five")  # wrong
def mistyped() -> None: ...


@lifespan
async def browser() -> AsyncIterator[Browser]:
    yield Browser("1")


assert_type(browser, Lifespan[Browser])


async def measure(url: str) -> Shot:
    return Shot(url, 1)


@task
async def album(ctx: Ctx[Browser], urls: list[str]) -> list[Shot]:
    shots: list[Shot] = []
    async for url in ctx.track(urls, phase="capture"):
        assert_type(url, str)
        shots.append(assert_type(await ctx.step(url, measure, url), Shot))
    assert_type(await ctx.submit(double(1), key="k", after=[ctx.task_id]), UUID)
    ctx.log("done", level="warning", pages=len(shots))
    await ctx.step("m", measure, 3)  # wrong
    await ctx.step(3, measure, "u")  # wrong
    await ctx.submit(double)  # wrong
    await ctx.submit(double(1), kee="k")  # wrong
    ctx.log("done", level="loud")  # wrong
    ctx.state.nothing()  # wrong
    width: int = await ctx.step("m", measure, "u")  # wrong
    return [*shots, Shot("", width)]


@task
def booklet(ctx: Ctx[Browser], urls: list[str]) -> int:
    for url in ctx.blocking.track(urls):
        assert_type(url, str)
    assert_type(ctx.blocking.step("w", len, "ab"), int)
    ctx.blocking.step("w", len, 3)  # wrong
    return ctx.blocking.step("w", str, 3)  # wrong
