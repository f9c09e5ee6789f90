from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import holdfast.definitions.tasks as d
from holdfast.definitions.tasks import Call, RetryPolicy, task
from holdfast.errors import InvalidError


@task(queue="browser", retries=2, timeout=timedelta(minutes=1))
async def screenshot(ctx: d.Ctx, url: str, width: int = 1280) -> str:
    return url


@task
def double(x: int) -> int:
    return 2 * x


def mark_call_used(call: Call[Any]) -> Call[Any]:
    call.mark_used()
    return call


def test_a_call_is_data_and_runs_nothing() -> None:
    call = mark_call_used(screenshot("https://e.example", width=800))
    assert call.task is screenshot
    assert call.args == {"url": "https://e.example", "width": 800}
    assert repr(call) == "screenshot(url='https://e.example', width=800)"


def test_the_context_is_not_an_argument() -> None:
    assert screenshot.takes_context
    assert list(screenshot.signature.parameters) == ["url", "width"]
    assert not double.takes_context


def test_a_task_has_its_options() -> None:
    assert (screenshot.name, screenshot.queue, screenshot.retry.retries) == ("screenshot", "browser", 2)
    assert screenshot.timeout == timedelta(minutes=1)
    assert screenshot.is_async
    assert (double.queue, double.retry, double.is_async) == ("default", RetryPolicy(), False)


def test_wrong_arguments_are_refused_where_the_call_is_made() -> None:
    with pytest.raises(InvalidError, match="task 'screenshot': missing a required argument: 'url'"):
        screenshot()  # type: ignore[call-arg]
    with pytest.raises(InvalidError, match="widht"):
        screenshot("https://e.example", widht=3)  # type: ignore[call-arg]


def test_dropping_an_unused_call_warns() -> None:
    with pytest.warns(RuntimeWarning, match="call of task double was never submitted"):
        double(3)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "a\0"])
def test_names_that_cannot_be_stored_are_refused(name: str) -> None:
    with pytest.raises(InvalidError, match="1 to 200 bytes"):
        task(queue=name)(lambda: None)


def test_parameters_that_cannot_be_named_are_refused() -> None:
    def variadic(*urls: str) -> None: ...
    def keywords(**urls: str) -> None: ...
    def positional(url: str, /) -> None: ...

    for function in (variadic, keywords, positional):
        with pytest.raises(InvalidError, match="has no name in a stored call"):
            task(function)


@pytest.mark.parametrize(
    "options",
    [{"retries": -1}, {"jitter": 2.0}, {"base": timedelta(-1)}, {"cap": timedelta(0)}],
)
def test_invalid_retry_policies_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidError):
        RetryPolicy(**options)


def test_a_time_limit_must_be_positive() -> None:
    with pytest.raises(InvalidError, match="timeout"):
        task(timeout=timedelta(0))(lambda: None)


async def test_awaiting_a_call_names_submit() -> None:
    with pytest.raises(TypeError, match=r"submit it: await client\.submit\(double\(\.\.\.\)\)"):
        await double(1)  # type: ignore[misc]


@pytest.mark.parametrize("method", ["delay", "apply_async", "enqueue", "send", "defer"])
def test_submit_methods_of_other_libraries_name_submit(method: str) -> None:
    error = (
        rf"task 'double' has no method '{method}'; submit a call of it: client\.submit\(double\(\.\.\.\)\)"
    )
    with pytest.raises(AttributeError, match=error):
        getattr(double, method)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        double.nonsense  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"prio": 3}, "@task has no option 'prio'; did you mean 'priority'?"),
        ({"retry": RetryPolicy(retries=1), "que": "x"}, "did you mean 'queue'?"),
    ],
)
def test_wrong_options_of_a_task_are_refused(options: Any, error: str) -> None:
    with pytest.raises(InvalidError, match=error):
        task(**options)(lambda: None)
