"""Graphs: jobs of several tasks that depend on each other. This module does not run them.

`graph.add(call)` returns a node. Its `result` stands for the value that the task will return: pass it to
another call, and that call runs afterwards and receives the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar, cast

import msgspec

from holdfast.definitions.tasks import Call
from holdfast.errors import InvalidError

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

OnFailure = Literal["fail", "skip", "run"]
"""What happens to a task when a task that it depends on did not succeed: it fails, is skipped, or runs."""

RESULT_REFERENCE_KEY = "holdfast:result"


class ResultReference(msgspec.Struct, frozen=True, rename={"task": RESULT_REFERENCE_KEY}):
    """A placeholder in task arguments for the result of another task. Workers replace it by the result."""

    task: str


@dataclass(frozen=True, eq=False)
class Node(Generic[R_co]):
    """One task of a graph.

    >>> from holdfast import Graph, Node, task
    >>> @task
    ... def double(x: int) -> int:
    ...     return 2 * x
    >>> node: Node[int] = Graph("numbers").add(double(21))
    >>> node.name
    'double'
    """

    name: str
    call: Call[R_co]
    after: Mapping[str, OnFailure]
    weight: float
    limit_key: str | None = None

    @property
    def result(self) -> R_co:
        """A placeholder for the result of this task. Pass it to another call of the same graph."""
        return cast("R_co", ResultReference(self.name))


@dataclass
class Graph:
    """A job of several tasks. `type` names the job; `params` are stored with it.

    >>> from holdfast import Graph, task
    >>> @task
    ... def fetch(url: str) -> str:
    ...     return url
    >>> @task
    ... def join(pages: list[str]) -> str:
    ...     return "".join(pages)
    >>> graph = Graph("book")
    >>> pages = [graph.add(fetch(url)) for url in ("a", "b")]
    >>> graph.add(join([page.result for page in pages])).after
    {'fetch': 'fail', 'fetch-2': 'fail'}
    """

    type: str
    nodes: dict[str, Node[Any]] = field(default_factory=dict[str, Node[Any]])
    params: object = None

    def add(
        self,
        call: Call[R],
        *,
        name: str | None = None,
        after: Iterable[Node[Any]] = (),
        on_failure: OnFailure = "fail",
        weight: float = 1.0,
        limit_key: str | None = None,
    ) -> Node[R]:
        """Add a call and return its node.

        The task runs after the nodes in `after` and after those whose results are among its arguments.
        `weight` is the share of the task in the progress of the job.
        """
        call.mark_used()
        name = name or self._choose_free_node_name(call.task.name)
        if name in self.nodes:
            raise InvalidError(
                f"The graph {self.type!r} has a task {name!r} already.",
                fix="Pass another name.",
                field="name",
            )
        dependencies = {node.name for node in after} | set(find_result_references(dict(call.args)))
        unknown = dependencies - self.nodes.keys()
        if unknown:
            raise InvalidError(
                f"The task {name!r} depends on {', '.join(sorted(unknown))}, which is not in the graph "
                f"{self.type!r}.",
                fix="Add that node to this graph first.",
                field="after",
            )
        node = Node(name, call, dict.fromkeys(sorted(dependencies), on_failure), weight, limit_key)
        self.nodes[name] = node
        return node

    def _choose_free_node_name(self, name: str) -> str:
        if name not in self.nodes:
            return name
        number = 2
        while f"{name}-{number}" in self.nodes:
            number += 1
        return f"{name}-{number}"


def find_result_references(value: object) -> Iterable[str]:
    """Yield the names of the tasks whose results occur in `value`."""
    if isinstance(value, ResultReference):
        yield value.task
    elif isinstance(value, dict):
        for inner in cast("dict[str, object]", value).values():
            yield from find_result_references(inner)
    elif isinstance(value, (list, tuple)):
        for inner in cast("list[object]", value):
            yield from find_result_references(inner)


def insert_results(value: object, results: Mapping[str, object]) -> object:
    """Replace each reference in stored arguments by the result of its task."""
    if isinstance(value, dict):
        mapping = cast("dict[str, object]", value)
        if len(mapping) == 1 and RESULT_REFERENCE_KEY in mapping:
            return _get_task_result(str(mapping[RESULT_REFERENCE_KEY]), results)
        return {name: insert_results(inner, results) for name, inner in mapping.items()}
    if isinstance(value, list):
        return [insert_results(inner, results) for inner in cast("list[object]", value)]
    return value


def _get_task_result(name: str, results: Mapping[str, object]) -> object:
    if name not in results:
        raise InvalidError(f"The arguments refer to the result of {name!r}, which has none.", field="args")
    return results[name]
