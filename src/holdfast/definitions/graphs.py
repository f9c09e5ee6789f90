"""A job of several tasks, as data: calls, and which of them come after which.

`g.add(call)` answers with a node. Its `result` stands for what the task will return: pass it to another
call and that call runs afterwards and is given the value.
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
"""What becomes of a task whose parent did not succeed: it fails too, is skipped, or runs anyway."""

RESULT = "holdfast:result"


class Ref(msgspec.Struct, frozen=True, rename={"task": RESULT}):
    """The place of a result that does not exist yet, as it is stored in a call's arguments."""

    task: str


@dataclass(frozen=True, eq=False)
class Node(Generic[R_co]):
    """One task of a graph."""

    name: str
    call: Call[R_co]
    after: Mapping[str, OnFailure]
    weight: float
    limit_key: str | None = None

    @property
    def result(self) -> R_co:
        """What the task will return; to be passed to another call of the same graph."""
        return cast("R_co", Ref(self.name))


@dataclass
class Graph:
    type: str
    nodes: dict[str, Node[Any]] = field(default_factory=dict[str, Node[Any]])
    params: object = None
    """What the graph was built from, kept with the job; None when nobody said."""

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
        """Add a call. It waits for the nodes in `after` and for those whose result it is given."""
        call.use()
        name = name or self._free_name(call.task.name)
        if name in self.nodes:
            raise InvalidError(f"Two tasks are called {name!r}.", fix="Give one another name.", field="name")
        parents = {node.name for node in after} | set(refs(dict(call.args)))
        unknown = parents - self.nodes.keys()
        if unknown:
            raise InvalidError(
                f"{name} comes after {', '.join(sorted(unknown))}, which this graph does not have.",
                field="after",
            )
        node = Node(name, call, dict.fromkeys(sorted(parents), on_failure), weight, limit_key)
        self.nodes[name] = node
        return node

    def _free_name(self, stem: str) -> str:
        if stem not in self.nodes:
            return stem
        number = 2
        while f"{stem}-{number}" in self.nodes:
            number += 1
        return f"{stem}-{number}"


def refs(value: object) -> Iterable[str]:
    """The names of the tasks whose results a value asks for."""
    if isinstance(value, Ref):
        yield value.task
    elif isinstance(value, dict):
        for inner in cast("dict[str, object]", value).values():
            yield from refs(inner)
    elif isinstance(value, (list, tuple)):
        for inner in cast("list[object]", value):
            yield from refs(inner)


def fill(value: object, results: Mapping[str, object]) -> object:
    """The stored arguments of a call with every result put in its place."""
    if isinstance(value, dict):
        mapping = cast("dict[str, object]", value)
        if len(mapping) == 1 and RESULT in mapping:
            return _result(str(mapping[RESULT]), results)
        return {name: fill(inner, results) for name, inner in mapping.items()}
    if isinstance(value, list):
        return [fill(inner, results) for inner in cast("list[object]", value)]
    return value


def _result(name: str, results: Mapping[str, object]) -> object:
    if name not in results:
        raise InvalidError(f"The result of {name} is asked for, and it has none.", field="args")
    return results[name]
