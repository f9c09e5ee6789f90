"""Tasks, calls and retry policies. This module does not run tasks.

Calling a task makes a `Call`: the task with its arguments. Pass it to `client.submit`, a graph, a batch or a
schedule. A call that is dropped unused warns, as a coroutine does that was never awaited.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import cached_property
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from holdfast.definitions.annotations import (
    get_caller_locals,
    is_imported_for_type_checking,
    resolve_annotations,
)
from holdfast.definitions.arguments import ArgumentBinder
from holdfast.definitions.call_options import CallOptions, split_call_options
from holdfast.definitions.context import Ctx
from holdfast.definitions.request_options import MAX_PRIORITY, MIN_PRIORITY
from holdfast.definitions.retry_policy import RetryPolicy
from holdfast.definitions.validation import check_option_names, check_whole_number, parse_duration
from holdfast.errors import InvalidError

__all__ = ["Call", "Ctx", "RetryPolicy", "Task", "task"]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")

DEFAULT_QUEUE = "default"
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
# Methods that submit a task in Celery, Dramatiq, RQ, Huey, procrastinate, taskiq and Django.
OTHER_LIBRARIES_SUBMIT_METHODS = frozenset(
    {"apply_async", "defer", "defer_async", "delay", "delay_on_commit", "enqueue", "kiq", "schedule", "send"}
)


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

    __slots__ = ("__weakref__", "_options", "_used", "adjusted_task", "args", "request_options", "task")

    def __init__(self, task: Task[..., R_co], args: Mapping[str, Any]) -> None:
        self.task = task
        self.args = args
        self.adjusted_task = task  # the task with the options of this call
        self.request_options: Mapping[str, Any] = _NO_OPTIONS  # fields of the submit request
        self._options: Mapping[str, Any] = _NO_OPTIONS
        self._used = False

    def options(self, **options: Unpack[CallOptions]) -> Call[R_co]:
        """Return this call with other options than its task has: `page_title(url).options(queue="slow")`.

        `CallOptions` lists them. Options of the call take precedence over those of `submit` and
        `submit_many`.
        """
        self.mark_used()
        changed: Call[R_co] = Call(self.task, self.args)
        changed._options = {**self._options, **options}
        task_options, changed.request_options = split_call_options(changed._options)
        changed.adjusted_task = self.task.adjust(task_options) if task_options else self.task
        return changed

    def mark_used(self) -> None:
        """Mark the call as submitted, so that it does not warn when it is garbage-collected."""
        self._used = True

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={value!r}" for name, value in self.args.items())
        options = ", ".join(f"{name}={value!r}" for name, value in self._options.items())
        return f"{self.task.name}({inner})" + (f".options({options})" if options else "")

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
                f"call of task {self.task.name} was never submitted; write "
                f"`await client.submit({self.task.name}(...))`, or in code without an event loop "
                f"`client.blocking.submit({self.task.name}(...))`",
                RuntimeWarning,
                source=self,
                stacklevel=2,
            )


def build_not_a_call_error(function: str, value: object) -> InvalidError:
    """Build the error for a value that is not the call of a task. `function` is what got the value."""
    if isinstance(value, Task):
        task = cast("Task[..., object]", value)
        return InvalidError(
            f"{function} needs a call, and got the task {task.name!r} itself.",
            fix=f"Call the task with its arguments: {function}({task.name}(...)).",
            field="call",
        )
    if inspect.iscoroutine(value):
        value.close()  # or it would warn that it was never awaited
        name = value.__name__
        return InvalidError(
            f"{function} got a coroutine of {name!r}, which is not a task.",
            fix=f"Decorate the function: @task above `async def {name}`.",
            field="call",
        )
    return InvalidError(
        f"{function} needs the call of a task, got {value!r}.",
        fix=f"Decorate the function with @task and pass its call: {function}(my_task(...)).",
        field="call",
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
    _binder: ArgumentBinder = field(init=False, repr=False)
    _local_names: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._check_options()
        signature, takes_context = _split_signature(self.function)
        object.__setattr__(self, "signature", signature)
        object.__setattr__(self, "takes_context", takes_context)
        object.__setattr__(self, "_binder", ArgumentBinder(signature))
        object.__setattr__(self, "_local_names", {})
        self._resolve_hints_early()

    def _check_options(self) -> None:
        _check_definition_name(self.name, "name")
        _check_definition_name(self.queue, "queue")
        check_whole_number(self.priority, "priority", minimum=MIN_PRIORITY, maximum=MAX_PRIORITY)
        for name in ("timeout", "lease"):
            object.__setattr__(self, name, parse_duration(getattr(self, name), name))
            if getattr(self, name) <= timedelta(0):
                raise InvalidError(f"{name} must be positive, got {getattr(self, name)}.", field=name)
        _check_memory_limit(self.memory, process=self.process)
        if self.limit is not None:
            check_whole_number(self.limit, "limit", minimum=1)
        check_whole_number(self.max_crashes, "max_crashes", minimum=1, maximum=1000)

    def adjust(self, options: Mapping[str, Any]) -> Task[P, R_co]:
        """Return this task with other options, without reading the signature of its function again."""
        changes = dict(options)
        retries: int | None = changes.pop("retries", None)
        if retries is not None:
            changes["retry"] = replace(changes.get("retry", self.retry), retries=retries)
        adjusted = copy.copy(self)
        for name, value in changes.items():
            object.__setattr__(adjusted, name, value)
        adjusted._check_options()
        return adjusted

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        try:
            return Call(self, self._binder.bind(args, kwargs))
        except TypeError as error:
            raise InvalidError(f"Wrong arguments for task {self.name!r}: {error}.", field="args") from None

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
        """The types of the parameters and of the result. Raise InvalidError if one cannot be resolved."""
        return self._resolve_annotations(include_extras=False)

    @cached_property
    def annotated_hints(self) -> dict[str, Any]:
        """The types with what `Annotated` adds to them."""
        return self._resolve_annotations(include_extras=True)

    @cached_property
    def context_hint(self) -> Any:
        """The type of the context parameter, or None if there is none or its name cannot be resolved.

        Modules import `Ctx` or the type of its state for type checkers only, so this raises no error.
        """
        if not self.takes_context:
            return None
        first = next(iter(inspect.signature(self.function).parameters))
        try:
            return resolve_annotations(self.function, local_names=self._local_names).get(first)
        except InvalidError:
            return None

    def _resolve_annotations(self, *, include_extras: bool) -> dict[str, Any]:
        context = next(iter(inspect.signature(self.function).parameters)) if self.takes_context else None
        return resolve_annotations(
            self.function, skip=context, local_names=self._local_names, include_extras=include_extras
        )

    def _resolve_hints_early(self) -> None:
        """Report annotations that can never be resolved. Names that the module defines later may follow."""
        try:
            self._resolve_annotations(include_extras=False)
        except InvalidError as error:
            if error.field == "function" or is_imported_for_type_checking(self.function, str(error.field)):
                raise
            object.__setattr__(self, "_local_names", get_caller_locals())


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


def _check_definition_name(name: object, what: str) -> None:
    if not isinstance(name, str):
        raise InvalidError(f"{what} must be a string, got {name!r}.", fix=f'Write {what}="mail".', field=what)
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
    timeout: timedelta | float = timedelta(minutes=10),
    lease: timedelta | float = timedelta(seconds=60),
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
    timeout: the maximum duration of an attempt, as a timedelta or in seconds. The default is 10 minutes.
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
