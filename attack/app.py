"""The application under attack: tasks that store texts of a user, a probe, and the names of every system."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from types import ModuleType
from typing import Annotated, Any

import msgspec

from holdfast import Ctx, Graph, Task, job, systems, task

SYSTEM_NAMES = tuple(
    module.name
    for module in pkgutil.iter_modules(systems.__path__)
    if hasattr(importlib.import_module(f"{systems.__name__}.{module.name}"), "install_if_needed")
)


# A secret that only the schema of its task marks.
Nickname = Annotated[str, msgspec.Meta(extra_json_schema={"format": "password"})]


class StoredTexts(msgspec.Struct):
    """Texts that the tasks of a job store wherever a user can store something."""

    text: str
    fail: bool = False
    wait_s: float = 0


@task(queue="planted", retries=0)
async def store_texts(ctx: Ctx, text: str) -> dict[str, str]:
    """Store a text as progress, as file name, as content and as result."""
    ctx.progress(1, 2, phase=text, message=text)
    name = text.replace("/", "_")[:100]
    await ctx.save(f"{name}.txt", text.encode(), "text/plain")
    await ctx.save(f"{name}.html", f"<p>{text}</p>".encode(), "text/html")
    return {"result": text}


@task(queue="planted", retries=0)
async def fail_with_text(text: str) -> None:
    """Fail with a text in the error and in a local variable of the traceback."""
    raise ValueError(text)


@task(queue="planted", retries=0)
async def spill_secrets(ctx: Ctx, api_token: str, nickname: Nickname) -> None:
    """Store secrets of the arguments as progress and as log line, and fail with them in the error."""
    text = f"cannot log in with {api_token} as {nickname}"
    ctx.progress(1, 2, phase=text, message=text)
    ctx.log(text, level="error")
    raise ValueError(text)


@task(queue="probe")
def probe(number: int) -> int:
    return number


@task(queue="planted-waiting")
def wait_for_nobody(text: str) -> str:
    """A task of a queue without a worker: its job stays queued."""
    return text


@job("planted", params=StoredTexts, public=True)
def planted_job(texts: StoredTexts) -> Graph:
    """A job of two tasks that stores texts, and fails if asked to."""
    graph = Graph("planted")
    graph.add(store_texts(texts.text))
    graph.add(fail_with_text(texts.text) if texts.fail else probe(1))
    return graph


@job("planted-waiting", params=StoredTexts, public=True)
def waiting_job(texts: StoredTexts) -> Graph:
    """A job that waits for ever."""
    graph = Graph("planted-waiting")
    graph.add(wait_for_nobody(texts.text))
    return graph


@job("internal", params=StoredTexts)
def internal_job(texts: StoredTexts) -> Graph:
    """A job type that users must not start."""
    graph = Graph("internal")
    graph.add(store_texts(texts.text))
    return graph


def list_queues_by_worker(system_names: Sequence[str]) -> dict[str, list[str]]:
    """Return the queues of each worker by its application: this one, and one for each system."""
    workers = {f"{__name__}:own_tasks": [task.queue for task in own_tasks]}
    for name in system_names:
        module: ModuleType = importlib.import_module(f"{systems.__name__}.{name}")
        workers[module.__name__] = [task.queue for task in module.tasks]
    return {app: sorted(set(queues)) for app, queues in workers.items()}


own_definitions: list[Any] = [
    store_texts,
    fail_with_text,
    spill_secrets,
    probe,
    planted_job,
    waiting_job,
    internal_job,
]
own_tasks: list[Task[..., Any]] = [store_texts, fail_with_text, spill_secrets, probe]
