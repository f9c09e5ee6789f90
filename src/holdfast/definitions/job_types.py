"""Job types: a name, the shape of its parameters, and how a graph is built from them.

    class Order(msgspec.Struct):
        pages: list[str]

    @job("report", params=Order, public=True)
    def report(order: Order) -> Graph: ...

`client.start(report, Order(pages=[...]))` submits one, and so does `POST /api/jobs/start` with `{"type":
"report", "params": {...}}`. A `public` one may be started by end users: what they choose is the parameters,
never the tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from holdfast.definitions import payloads
from holdfast.definitions.graphs import Graph
from holdfast.definitions.tasks import Call
from holdfast.errors import InvalidError, NotFoundError

P = TypeVar("P")


@dataclass(frozen=True)
class JobType(Generic[P]):
    name: str
    params: type[P]
    build: Callable[[P], Graph | Call[Any]]
    public: bool = False

    def __post_init__(self) -> None:
        if not self.name or len(self.name.encode()) > 200 or not self.name.isprintable():
            raise InvalidError(
                f"The name of a job type is 1 to 200 printable bytes, got {self.name!r}.", field="name"
            )

    @property
    def doc(self) -> str:
        return (self.build.__doc__ or "").strip()

    def __call__(self, params: P | Mapping[str, Any]) -> Graph:
        """The graph for these parameters, which are checked first unless they have their type already."""
        checked: P
        if isinstance(params, self.params):
            checked = params
        else:
            checked = payloads.from_json(params, self.params, what="params")
        work = self.build(checked)
        if isinstance(work, Call):
            graph = Graph(self.name)
            graph.add(work)
        else:
            graph = work
            graph.type = self.name
        graph.params = checked
        return graph


class JobDecorator(Generic[P]):
    def __init__(self, name: str, params: type[P], *, public: bool) -> None:
        self._name = name
        self._params = params
        self._public = public

    def __call__(self, build: Callable[[P], Graph | Call[Any]]) -> JobType[P]:
        return JobType(self._name, self._params, build, self._public)


def job(name: str, *, params: type[P], public: bool = False) -> JobDecorator[P]:
    """Make a function that builds a graph, or one call, a job type."""
    return JobDecorator(name, params, public=public)


def index_job_types(types: Iterable[JobType[Any]]) -> dict[str, JobType[Any]]:
    found: dict[str, JobType[Any]] = {}
    for each in types:
        if each.name in found:
            raise InvalidError(f"Two job types are called {each.name!r}.", field="types")
        found[each.name] = each
    return found


def find_job_type(types: Mapping[str, JobType[Any]], name: str) -> JobType[Any]:
    if name not in types:
        raise NotFoundError(
            f"There is no job type {name!r} here.",
            fix="Pass it in types=, or start the job type itself.",
            field="type",
        )
    return types[name]
