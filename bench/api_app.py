"""Job types for bench/api.py: one that does nothing, and one of several tasks."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast import Graph, job, task


class Count(msgspec.Struct):
    n: int


@task(queue="bench")
def noop(n: int) -> int:
    return n


@task(queue="streams", name="page")
def page(n: int) -> int:
    return n


@job("noop", params=Count, public=True)
def one(count: Count) -> Any:
    return noop(count.n)


@job("several", params=Count, public=True)
def several(count: Count) -> Graph:
    graph = Graph("several")
    for number in range(count.n):
        graph.add(page(number))
    return graph
