"""Job types for bench/api.py: `noop` is one task, `several` is a graph of n tasks."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast import Graph, job, task


class JobParams(msgspec.Struct):
    n: int


@task(queue="bench")
def noop(n: int) -> int:
    return n


@task(queue="streams", name="page")
def page(n: int) -> int:
    return n


@job("noop", params=JobParams, public=True)
def start_noop(params: JobParams) -> Any:
    return noop(params.n)


@job("several", params=JobParams, public=True)
def start_several(params: JobParams) -> Graph:
    graph = Graph("several")
    for number in range(params.n):
        graph.add(page(number))
    return graph
