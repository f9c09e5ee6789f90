"""Job types for tests of the HTTP API: a public book with pages, and an internal job type."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast import Graph, job, task

SERVICE_KEY = "hf_test_key"
# The paths that need no token. A signed link is a credential of its own.
PUBLIC_PATHS = {
    "/healthz",
    "/readyz",
    "/api/openapi.json",
    "/api/docs",
    "/api/holdfast.js",
    "/files/{signed}",
}


class Pages(msgspec.Struct):
    count: int = 2
    title: str = ""


@task(queue="q")
def page(number: int) -> int:
    return number


@task(queue="q")
def bind(pages: list[int]) -> int:
    return sum(pages)


@job("book", params=Pages, public=True)
def book_job(pages: Pages) -> Graph:
    """A book of pages."""
    graph = Graph("book")
    nodes = [graph.add(page(number)) for number in range(pages.count)]
    graph.add(bind([node.result for node in nodes]))
    return graph


@job("inner", params=Pages)
def internal_job(pages: Pages) -> Any:
    return page(pages.count)
