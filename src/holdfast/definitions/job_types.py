"""Job types: a name, the type of the parameters, and a function that builds the work from them.

`client.start_job(report, params)` submits a job of a type, and so does `POST /api/jobs/start`. End users may
start the `public` ones: they choose the parameters, never the tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from holdfast.definitions import payloads
from holdfast.definitions.graphs import Graph
from holdfast.definitions.tasks import Call
from holdfast.definitions.validation import format_name_suggestion
from holdfast.errors import InvalidError, NotFoundError

P = TypeVar("P")


@dataclass(frozen=True)
class JobType(Generic[P]):
    """A type of job that `client.start` and the HTTP API can start. `@job` creates it.

    >>> from dataclasses import dataclass
    >>> from holdfast import Call, JobType, job, task
    >>> @task
    ... def fetch(url: str) -> str:
    ...     return url
    >>> @dataclass
    ... class Order:
    ...     url: str
    >>> @job("page", params=Order)
    ... def page(order: Order) -> Call[str]:
    ...     return fetch(order.url)
    >>> isinstance(page, JobType), page({"url": "https://e.example"}).type
    (True, 'page')
    """

    name: str
    params: type[P]
    build: Callable[[P], Graph | Call[Any]]
    public: bool = False

    def __post_init__(self) -> None:
        if not self.name or len(self.name.encode()) > 200 or not self.name.isprintable():
            raise InvalidError(
                f"The name of a job type must be 1 to 200 printable bytes, got {self.name!r}.", field="name"
            )

    @property
    def doc(self) -> str:
        """The docstring of the function that builds the work."""
        return (self.build.__doc__ or "").strip()

    def __call__(self, params: P | Mapping[str, Any]) -> Graph:
        """Build the graph for these parameters. A mapping is converted to the type of the parameters."""
        converted: P
        if isinstance(params, self.params):
            converted = params
        else:
            converted = payloads.convert_payload(params, self.params, what="params")
        work = self.build(converted)
        if isinstance(work, Call):
            graph = Graph(self.name)
            graph.add(work)
        else:
            graph = work
            graph.type = self.name
        graph.params = converted
        return graph


class JobDecorator(Generic[P]):
    """The decorator that `@job(...)` returns."""

    def __init__(self, name: str, params: type[P], *, public: bool) -> None:
        self._name = name
        self._params = params
        self._public = public

    def __call__(self, build: Callable[[P], Graph | Call[Any]]) -> JobType[P]:
        return JobType(self._name, self._params, build, self._public)


def job(name: str, *, params: type[P], public: bool = False) -> JobDecorator[P]:
    """Declare a job type: decorate a function that builds a graph, or one call, from the parameters.

    `public=True` lets end users start it through the HTTP API.

    >>> from dataclasses import dataclass
    >>> from holdfast import Call, job, task
    >>> @task
    ... def fetch(url: str) -> str:
    ...     return url
    >>> @dataclass
    ... class Order:
    ...     url: str
    >>> @job("page", params=Order, public=True)
    ... def page(order: Order) -> Call[str]:
    ...     return fetch(order.url)
    """
    return JobDecorator(name, params, public=public)


def index_job_types(job_types: Iterable[JobType[Any]]) -> dict[str, JobType[Any]]:
    """Return the job types by name. Two must not have the same name."""
    by_name: dict[str, JobType[Any]] = {}
    for job_type in job_types:
        if job_type.name in by_name:
            raise InvalidError(
                f"Two job types have the name {job_type.name!r}.", fix="Rename one.", field="job_types"
            )
        by_name[job_type.name] = job_type
    return by_name


def get_job_type(job_types: Mapping[str, JobType[Any]], name: str) -> JobType[Any]:
    """Return the job type of this name. Raise NotFoundError if the client does not know it."""
    if name not in job_types:
        raise NotFoundError(
            f"The client has no job type {name!r}{format_name_suggestion(name, job_types)}",
            fix="Create the client with job_types=[...], or pass the job type itself.",
            field="type",
        )
    return job_types[name]
