"""Graphs: jobs of several tasks that depend on each other. This module does not run them.

`graph.add(call)` returns a node. Its `result` stands for the value that the task will return: pass it to
another call, and that call runs afterwards and receives the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NoReturn, TypeVar, cast

import msgspec

from holdfast.definitions.call_options import check_request_fields
from holdfast.definitions.tasks import Call, build_not_a_call_error
from holdfast.errors import InvalidError

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

OnFailure = Literal["fail", "skip", "run"]
"""What happens to a task when a task that it depends on did not succeed: it fails, is skipped, or runs."""

RESULT_REFERENCE_KEY = "holdfast:result"


class ResultReference(msgspec.Struct, frozen=True, rename={"task": RESULT_REFERENCE_KEY}):
    """A placeholder in task arguments for the result of another task. Workers replace it by the result.

    It has no value until the graph runs, so every attempt to use one is an error.
    """

    task: str

    def _build_error(self) -> InvalidError:
        return InvalidError(
            f"The result of {self.task!r} has no value yet: the graph has not run.",
            fix="Pass node.result to another call as it is: graph.add(other_task(node.result)). The value "
            "arrives there.",
            field="result",
        )

    def _refuse_use(self, *_: object) -> NoReturn:
        raise self._build_error()

    __str__ = __bool__ = __iter__ = __len__ = __getitem__ = __contains__ = __call__ = _refuse_use
    __int__ = __float__ = __index__ = __bytes__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse_use
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse_use
    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __or__ = __ror__ = __and__ = __rand__ = _refuse_use

    def __format__(self, spec: str) -> NoReturn:
        raise self._build_error()

    def __getattr__(self, name: str) -> NoReturn:
        # Libraries look for special methods, and expect an AttributeError.
        raise AttributeError(str(self._build_error()) if not name.startswith("__") else name)


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
        if not isinstance(call, Call):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise build_not_a_call_error("graph.add", call)
        call.mark_used()
        check_request_fields(
            call.request_options, "in a graph", "Pass it to submit(graph, ...), for the whole job."
        )
        name = name or self._choose_free_node_name(call.task.name)
        if name in self.nodes:
            raise InvalidError(
                f"The graph {self.type!r} has a task {name!r} already.",
                fix="Pass another name.",
                field="name",
            )
        dependencies = {node.name for node in after} | set(find_result_references(dict(call.args)))
        _refuse_other_work(call.task.name, dict(call.args))
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


def _refuse_other_work(task: str, value: object) -> None:
    """Refuse a node or a call as the argument of a call: its result was meant."""
    if isinstance(value, Node):
        node = cast("Node[object]", value)
        raise InvalidError(
            f"An argument of {task} is the node {node.name!r} itself.",
            fix=f"Pass its result: {task}(node.result).",
            field="args",
        )
    if isinstance(value, dict):
        for inner in cast("dict[str, object]", value).values():
            _refuse_other_work(task, inner)
    elif isinstance(value, (list, tuple)):
        for inner in cast("list[object]", value):
            _refuse_other_work(task, inner)


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
