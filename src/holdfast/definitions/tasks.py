"""How users say what can be done: tasks, calls and outcomes. Passive values; nothing here runs anything.

A task knows no application. Calling it makes a `Call`, which is data: what to run with which arguments.
A call goes into `client.submit`, a graph, a batch or a schedule, and warns when it is dropped unused,
as a coroutine does that nobody awaits.
"""

from __future__ import annotations

import inspect
import typing
import warnings
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from holdfast.definitions.context import Ctx
from holdfast.errors import InvalidError

__all__ = ["Call", "Ctx", "RetryPolicy", "Task", "task"]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")

DEFAULT_QUEUE = "default"


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often and how fast a failed attempt is tried again: `min(cap, base * 2 ** (n - 1))`, jittered."""

    retries: int = 4
    base: timedelta = timedelta(seconds=5)
    cap: timedelta = timedelta(minutes=15)
    jitter: float = 0.2
    retry_for: tuple[type[BaseException], ...] = (Exception,)
    never_for: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise InvalidError(f"retries must not be negative, got {self.retries}.", field="retries")
        if self.base < timedelta(0) or self.cap < self.base:
            raise InvalidError("base must not be negative and cap not below it.", field="base")
        if not 0 <= self.jitter <= 1:
            raise InvalidError(f"jitter must be between 0 and 1, got {self.jitter}.", field="jitter")


class Call(Generic[R_co]):
    """One task with its arguments: what `screenshot(url, width=800)` evaluates to."""

    __slots__ = ("__weakref__", "_used", "args", "task")

    def __init__(self, task: Task[..., R_co], args: Mapping[str, Any]) -> None:
        self.task = task
        self.args = args
        self._used = False

    def use(self) -> None:
        """Mark as submitted, so that dropping it is no mistake."""
        self._used = True

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={value!r}" for name, value in self.args.items())
        return f"{self.task.name}({inner})"

    def __del__(self) -> None:
        if not getattr(self, "_used", True):
            warnings.warn(
                f"call of task {self.task.name} was never submitted",
                RuntimeWarning,
                source=self,
                stacklevel=2,
            )


@dataclass(frozen=True, eq=False)
class Task(Generic[P, R_co]):
    """A function that workers can run, with how it wants to be run."""

    function: Callable[..., Any]
    name: str
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout: timedelta = timedelta(minutes=10)
    lease: timedelta = timedelta(seconds=60)
    process: bool = False  # run in a child process, which can be killed
    memory: int | None = None  # bytes that the child and what it starts may hold
    limit: int | None = None  # of its attempts at once, over all workers
    signature: inspect.Signature = field(init=False, repr=False)
    wants_context: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check_name(self.name, "name")
        _check_name(self.queue, "queue")
        for name in ("timeout", "lease"):
            if getattr(self, name) <= timedelta(0):
                raise InvalidError(f"{name} must be positive, got {getattr(self, name)}.", field=name)
        _check_memory(self.memory, process=self.process)
        if self.limit is not None and self.limit < 1:
            raise InvalidError(f"limit must be at least 1, got {self.limit}.", field="limit")
        signature, wants_context = _signature(self.function)
        object.__setattr__(self, "signature", signature)
        object.__setattr__(self, "wants_context", wants_context)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as problem:
            raise InvalidError(f"{self.name}: {problem}.", field="args") from None
        return Call(self, bound.arguments)

    @cached_property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    @cached_property
    def hints(self) -> dict[str, Any]:
        """The types of parameters and result, as far as they can be known at run time."""
        try:
            return typing.get_type_hints(self.function)
        except (NameError, TypeError, AttributeError):
            return {}  # a hint that only type checkers can resolve: values pass as JSON gave them


def _check_memory(memory: int | None, *, process: bool) -> None:
    if memory is None:
        return
    if memory <= 0:
        raise InvalidError(f"memory must be positive, got {memory}.", field="memory")
    if not process:
        raise InvalidError(
            "memory is a limit for child processes.",
            fix="Add process=True, or leave memory out.",
            field="memory",
        )


def _check_name(name: str, what: str) -> None:
    if not name or len(name.encode()) > 200 or any(ord(c) < 32 for c in name):
        raise InvalidError(
            f"{what} must be 1 to 200 bytes without control characters, got {name!r}.", field=what
        )


def _signature(function: Callable[..., Any]) -> tuple[inspect.Signature, bool]:
    """What callers may pass, and whether the function asks for the context in front of it."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise InvalidError(
                f"{function.__name__}: parameter {parameter.name!r} cannot be named in a stored call.",
                fix="Use ordinary named parameters; no *args, **kwargs or positional-only ones.",
                field=parameter.name,
            )
    wants_context = bool(parameters) and _is_context(parameters[0])
    return signature.replace(parameters=parameters[1:] if wants_context else parameters), wants_context


def _is_context(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return parameter.name == "ctx" or text.rpartition(".")[2].partition("[")[0] == "Ctx"


class TaskDecorator(Protocol):
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
    """Make a function a task: `@task` or `@task(queue="browser", retries=5)`."""
    policy = retry or RetryPolicy()
    if retries is not None:
        policy = replace(policy, retries=retries)

    def decorate(function: Callable[..., Any]) -> Task[Any, Any]:
        return Task(function, name or function.__name__, retry=policy, **options)

    return decorate if function is None else decorate(function)
