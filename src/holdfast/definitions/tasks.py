"""Tasks, calls and retry policies. This module does not run tasks.

Calling a task makes a `Call`: the task with its arguments. Pass it to `client.submit`, a graph, a batch or a
schedule. A call that is dropped unused warns, as a coroutine does that was never awaited.
"""

from __future__ import annotations

import inspect
import typing
import warnings
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from holdfast.definitions.context import Ctx
from holdfast.definitions.validation import check_duration, check_option_names
from holdfast.errors import InvalidError

__all__ = ["Call", "Ctx", "RetryPolicy", "Task", "task"]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")

DEFAULT_QUEUE = "default"
# Methods that submit a task in Celery, Dramatiq, RQ, Huey, procrastinate, taskiq and Django.
OTHER_LIBRARIES_SUBMIT_METHODS = frozenset(
    {"apply_async", "defer", "defer_async", "delay", "delay_on_commit", "enqueue", "kiq", "schedule", "send"}
)


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often and how soon a failed attempt is retried.

    The delay before retry number n is `min(cap, base * 2 ** (n - 1))`, changed at random by up to `jitter`
    of its length. Exceptions in `never_for`, and those not in `retry_for`, are not retried.

    >>> from datetime import timedelta
    >>> from holdfast import RetryPolicy, task
    >>> @task(retry=RetryPolicy(retries=8, base=timedelta(seconds=1), never_for=(KeyError,)))
    ... def fetch(url: str) -> str:
    ...     return url
    """

    retries: int = 4
    base: timedelta = timedelta(seconds=5)
    cap: timedelta = timedelta(minutes=15)
    jitter: float = 0.2
    retry_for: tuple[type[BaseException], ...] = (Exception,)
    never_for: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise InvalidError(f"retries must not be negative, got {self.retries}.", field="retries")
        for name in ("base", "cap"):
            check_duration(getattr(self, name), name)
        if self.base < timedelta(0) or self.cap < self.base:
            raise InvalidError(
                f"base must not be negative and cap must not be shorter than base, got base {self.base} and "
                f"cap {self.cap}.",
                field="base",
            )
        if not 0 <= self.jitter <= 1:
            raise InvalidError(f"jitter must be between 0 and 1, got {self.jitter}.", field="jitter")


class Call(Generic[R_co]):
    """A task with its arguments: the value of `screenshot(url, width=800)`.

    >>> from holdfast import Call, task
    >>> @task
    ... def double(x: int) -> int:
    ...     return 2 * x
    >>> call: Call[int] = double(21)
    >>> call
    double(x=21)
    >>> call.mark_used()  # only because this example does not submit it
    """

    __slots__ = ("__weakref__", "_used", "args", "task")

    def __init__(self, task: Task[..., R_co], args: Mapping[str, Any]) -> None:
        self.task = task
        self.args = args
        self._used = False

    def mark_used(self) -> None:
        """Mark the call as submitted, so that it does not warn when it is garbage-collected."""
        self._used = True

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={value!r}" for name, value in self.args.items())
        return f"{self.task.name}({inner})"

    if not TYPE_CHECKING:  # type checkers report `await task()` because they do not see this method

        def __await__(self) -> Any:
            self._used = True
            raise TypeError(
                f"a call of task {self.task.name!r} cannot be awaited; submit it: "
                f"await client.submit({self.task.name}(...))"
            )

    def __del__(self) -> None:
        if not getattr(self, "_used", True):
            warnings.warn(
                f"call of task {self.task.name} was never submitted; pass it to client.submit",
                RuntimeWarning,
                source=self,
                stacklevel=2,
            )


@dataclass(frozen=True, eq=False)
class Task(Generic[P, R_co]):
    """A function that workers run, with its options. `@task` creates it; calling it returns a `Call`.

    >>> from holdfast import Task, task
    >>> @task(queue="browser", retries=5)
    ... def screenshot(url: str, width: int = 1280) -> str:
    ...     return url
    >>> isinstance(screenshot, Task), screenshot.queue
    (True, 'browser')
    """

    function: Callable[..., Any]
    name: str
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout: timedelta = timedelta(minutes=10)
    lease: timedelta = timedelta(seconds=60)
    process: bool = False  # run in a child process, which can be killed
    memory: int | None = None  # the maximum number of bytes for the child process and its children
    limit: int | None = None  # the maximum number of attempts that run at once, over all workers
    max_crashes: int = 3  # the task fails when its process has died this often while only it ran there
    signature: inspect.Signature = field(init=False, repr=False)
    takes_context: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check_definition_name(self.name, "name")
        _check_definition_name(self.queue, "queue")
        for name in ("timeout", "lease"):
            check_duration(getattr(self, name), name)
            if getattr(self, name) <= timedelta(0):
                raise InvalidError(f"{name} must be positive, got {getattr(self, name)}.", field=name)
        _check_memory_limit(self.memory, process=self.process)
        if self.limit is not None and self.limit < 1:
            raise InvalidError(f"limit must be at least 1, got {self.limit}.", field="limit")
        if not 1 <= self.max_crashes <= 1000:
            raise InvalidError(
                f"max_crashes must be between 1 and 1000, got {self.max_crashes}.", field="max_crashes"
            )
        signature, takes_context = _split_signature(self.function)
        object.__setattr__(self, "signature", signature)
        object.__setattr__(self, "takes_context", takes_context)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidError(f"Wrong arguments for task {self.name!r}: {error}.", field="args") from None
        return Call(self, bound.arguments)

    if not TYPE_CHECKING:  # type checkers report unknown attributes themselves

        def __getattr__(self, name: str) -> Any:
            if name in OTHER_LIBRARIES_SUBMIT_METHODS:
                raise AttributeError(
                    f"task {self.name!r} has no method {name!r}; submit a call of it: "
                    f"client.submit({self.name}(...))"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @cached_property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.function)

    @cached_property
    def hints(self) -> dict[str, Any]:
        """The types of the parameters and of the result, where they can be resolved at run time."""
        try:
            return typing.get_type_hints(self.function)
        except (NameError, TypeError, AttributeError):
            return {}  # an annotation that only type checkers can resolve: values stay plain JSON


def _check_memory_limit(memory: int | None, *, process: bool) -> None:
    if memory is None:
        return
    if memory <= 0:
        raise InvalidError(f"memory must be positive, got {memory}.", field="memory")
    if not process:
        raise InvalidError(
            "The option memory applies only to tasks that run in a child process, and this task does not.",
            fix="Add process=True, or leave memory out.",
            field="memory",
        )


def _check_definition_name(name: str, what: str) -> None:
    if not name or len(name.encode()) > 200 or any(ord(c) < 32 for c in name):
        raise InvalidError(
            f"{what} must be 1 to 200 bytes without control characters, got {name!r}.", field=what
        )


def _split_signature(function: Callable[..., Any]) -> tuple[inspect.Signature, bool]:
    """Return the signature without the context parameter, and whether the function takes a context."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise InvalidError(
                f"Parameter {parameter.name!r} of task {function.__name__!r} has no name in a stored call.",
                fix="Use named parameters only: no *args, **kwargs or positional-only parameters.",
                field=parameter.name,
            )
    takes_context = bool(parameters) and _is_context_parameter(parameters[0])
    return signature.replace(parameters=parameters[1:] if takes_context else parameters), takes_context


def _is_context_parameter(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return parameter.name == "ctx" or text.rpartition(".")[2].partition("[")[0] == "Ctx"


_TASK_OPTIONS = ("retries", *(each.name for each in fields(Task) if each.init and each.name != "function"))


class TaskDecorator(Protocol):
    """The decorator that `@task(...)` returns."""

    @overload
    def __call__(self, function: Callable[Concatenate[Ctx[S], P], Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Ctx[S], P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


@overload
def task(function: Callable[Concatenate[Ctx[S], P], Awaitable[R]], /) -> Task[P, R]: ...
@overload
def task(function: Callable[Concatenate[Ctx[S], P], R], /) -> Task[P, R]: ...
@overload
def task(function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
@overload
def task(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(
    *,
    name: str | None = None,
    queue: str = DEFAULT_QUEUE,
    priority: int = 0,
    retries: int | None = None,
    retry: RetryPolicy | None = None,
    timeout: timedelta = timedelta(minutes=10),
    lease: timedelta = timedelta(seconds=60),
    process: bool = False,
    memory: int | None = None,
    limit: int | None = None,
    max_crashes: int = 3,
) -> TaskDecorator: ...
def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    retries: int | None = None,
    retry: RetryPolicy | None = None,
    **options: Any,
) -> Any:
    """Declare a task: decorate a function with `@task` or `@task(queue="browser", retries=5)`.

    name: the name that jobs store. The default is the name of the function.
    queue: the queue of the task. The default is `default`.
    priority: a higher number runs first. The default is 0.
    retries: how often a failed attempt is retried. The default is 4.
    retry: a `RetryPolicy`, instead of `retries`.
    timeout: the maximum duration of an attempt. The default is 10 minutes.
    lease: how long a worker that stops renewing its lease keeps the task. The default is 60 seconds.
    process: run the function in a child process, which can be killed. The default is False.
    memory: the maximum number of bytes for the child process. The default is no limit.
    limit: the maximum number of attempts that run at once, over all workers. The default is no limit.
    max_crashes: how often the task may kill its process before it fails. The default is 3.

    >>> from holdfast import Ctx, task
    >>> @task(queue="browser", retries=5)
    ... async def screenshot(ctx: Ctx, url: str) -> str:
    ...     ctx.progress(50, message=url)
    ...     return url
    """
    check_option_names(options, _TASK_OPTIONS, "@task")
    policy = retry or RetryPolicy()
    if retries is not None:
        policy = replace(policy, retries=retries)

    def decorate(function: Callable[..., Any]) -> Task[Any, Any]:
        return Task(function, name or function.__name__, retry=policy, **options)

    return decorate if function is None else decorate(function)
