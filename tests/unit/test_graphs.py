from __future__ import annotations

import msgspec
import pytest

from holdfast.definitions.graphs import Graph, Node, insert_results
from holdfast.definitions.payloads import encode_payload
from holdfast.definitions.tasks import task
from holdfast.errors import InvalidError


@task
def page(url: str) -> str:
    return url


@task
def title(html: str, width: int = 3) -> str:
    return html


@task
def join(parts: list[str], extra: dict[str, str] | None = None) -> str:
    return ""


def test_a_result_in_the_arguments_makes_its_task_a_dependency() -> None:
    g = Graph("report")
    first, second = g.add(page("a")), g.add(page("b"))
    third = g.add(join([first.result, "x"], extra={"k": second.result}))
    assert third.after == {"page": "fail", "page-2": "fail"}


def test_after_adds_dependencies() -> None:
    g = Graph("report")
    first = g.add(page("a"))
    assert g.add(title("x"), after=[first], on_failure="run").after == {"page": "run"}


def test_results_replace_their_references() -> None:
    g = Graph("report")
    first = g.add(page("a"))
    node = g.add(join([first.result, "x"], extra={"k": first.result}))
    stored = msgspec.json.decode(encode_payload(dict(node.call.args), what="args"))
    assert insert_results(stored, {"page": "<html>"}) == {"parts": ["<html>", "x"], "extra": {"k": "<html>"}}
    with pytest.raises(InvalidError, match="the result of 'page'"):
        insert_results(stored, {})


def test_names_are_unique() -> None:
    g = Graph("report")
    names = [g.add(page(str(n))).name for n in range(3)]
    assert names == ["page", "page-2", "page-3"]
    call = page("x")
    with pytest.raises(InvalidError, match="has a task 'page' already"):
        g.add(call, name="page")


def test_a_node_of_another_graph_is_refused() -> None:
    stranger: Node[str] = Graph("other").add(page("a"))
    call = title(stranger.result)
    with pytest.raises(InvalidError, match="task 'title' depends on page"):
        Graph("report").add(call)
