"""Mistakes of people who are new to Holdfast: each has an error that names it and shows the right line."""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from holdfast import CallOptions, Client, Ctx, Graph, RetryPolicy, Snooze, schedule, task
from holdfast.client.submit_options import build_job_request, build_submit_options
from holdfast.definitions.payloads import encode_payload
from holdfast.definitions.tasks import Call
from holdfast.errors import InvalidError


@task
def resize(image: Any, width: int = 100) -> str:
    return "file"


@task
def join(parts: list[str]) -> str:
    return "".join(parts)


def use_call(call: Call[Any]) -> Call[Any]:
    call.mark_used()
    return call


def refuse(message: str) -> Any:
    return pytest.raises(InvalidError, match=f"^{re.escape(message)}$")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"prio": 3},
            "@task has no option 'prio'; did you mean 'priority'? Options: retries, name, queue, priority, retry, "
            "timeout, lease, process, memory, limit, max_crashes.",
        ),
        (
            {"timeout": "5s"},
            "timeout must be a timedelta or a number of seconds, got '5s'. "
            "Write timeout=30 or timeout=timedelta(seconds=30).",
        ),
        ({"retries": "3"}, "retries must be a whole number of at least 0, got '3'. Write retries=3."),
        ({"retries": -1}, "retries must be a whole number of at least 0, got -1."),
        ({"limit": 0.5}, "limit must be a whole number of at least 1, got 0.5. Write limit=3."),
        ({"priority": "high"}, "priority must be a whole number from -100 to 100, got 'high'. Write priority=3."),
        ({"priority": 101}, "priority must be a whole number from -100 to 100, got 101."),
        ({"queue": 5}, 'queue must be a string, got 5. Write queue="mail".'),
        ({"timeout": 0}, "timeout must be positive, got 0:00:00."),
    ],
)  # fmt: skip
def test_wrong_options_of_a_task(options: Any, message: str) -> None:
    with refuse(message):
        task(**options)(lambda: None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": 5}, "key must be a string, got 5. Write key=str(...)."),
        ({"priority": True}, "priority must be a whole number from -100 to 100, got True. Write priority=3."),
        ({"labels": ["a"]}, "labels must be a dict of strings, got ['a']. Write labels={\"team\": \"blue\"}."),
        ({"labels": {"a": 1}}, "labels must be a dict of strings, got {'a': 1}. Write labels={\"team\": \"blue\"}."),
        ({"check": "yes"}, "check must be True or False, got 'yes'."),
        (
            {"delay": float("nan")},
            "delay must be a timedelta or a number of seconds, got nan. "
            "Write delay=30 or delay=timedelta(seconds=30).",
        ),
        ({"queue": "slow"}, "queue is an option of a call, not of submit. Write submit(my_task(...).options(queue=...))."),
        ({"retries": 9}, "retries is an option of a call, not of submit. Write submit(my_task(...).options(retries=...))."),
    ],
)  # fmt: skip
def test_wrong_options_of_submit(options: Any, message: str) -> None:
    with refuse(message):
        build_submit_options(options)


def test_the_id_of_a_row_is_an_owner_and_a_key() -> None:
    user = UUID(int=7)
    options: Any = {"owner": user, "key": user}
    assert build_submit_options(options) == {"owner": str(user), "key": str(user)}


@pytest.mark.parametrize("seconds", [90, 90.0, timedelta(seconds=90)])
def test_numbers_are_seconds_wherever_a_duration_is_expected(seconds: Any) -> None:
    @task(timeout=seconds, lease=seconds, retry=RetryPolicy(base=seconds, cap=seconds))
    def wait() -> None: ...

    assert wait.timeout == wait.lease == wait.retry.base == wait.retry.cap == timedelta(seconds=90)
    assert build_submit_options({"delay": seconds, "throttle": seconds}) == {"delay_s": 90, "throttle_s": 90}
    assert schedule(wait(), every=seconds).every == timedelta(seconds=90)
    assert schedule(seconds)(wait).schedules[0].every == timedelta(seconds=90)
    assert Snooze(seconds).delay == timedelta(seconds=90)


def test_an_annotation_for_type_checkers_only_is_refused_at_import() -> None:
    with refuse(
        "The annotations of task 'remind' use date, which does not exist at run time, so arguments cannot be "
        "converted. Move the import of date out of `if TYPE_CHECKING:`."
    ):
        importlib.import_module("type_checking_only")
    sys.modules.pop("type_checking_only", None)


def test_a_name_that_does_not_exist_is_refused_when_the_task_is_used() -> None:
    @task
    def remind(day: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with refuse(
        "The annotations of task 'remind' use Nowhere, which does not exist at run time, so arguments cannot be "
        "converted. Import Nowhere at the top of the module, or correct the annotation."
    ):
        _ = remind.hints


def test_an_annotation_that_is_no_type_is_refused_at_import() -> None:
    def remind(day: date.nosuch) -> None: ...  # type: ignore[name-defined]

    with refuse(
        "An annotation of task 'remind' cannot be evaluated: type object 'datetime.date' has no attribute "
        "'nosuch'. Correct the annotation, or use Any."
    ):
        task(remind)


def test_a_type_of_the_declaring_function_is_resolved() -> None:
    @dataclass
    class Local:
        x: int

    @task
    def take(value: Local) -> None: ...

    assert take.hints["value"] is Local


def test_a_type_below_the_task_is_resolved_later() -> None:
    assert uses_a_later_type.hints["value"] is DefinedBelow


@task
def uses_a_later_type(value: DefinedBelow) -> None: ...


@dataclass
class DefinedBelow:
    x: int


def test_the_type_of_the_context_may_be_known_to_type_checkers_only() -> None:
    @task
    def run(ctx: Ctx[State], day: date) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert run.hints == {"day": date, "return": type(None)}


@pytest.mark.parametrize(
    ("value", "place", "kind"),
    [
        (object(), ".image", "object"),
        ({"a": [1, object()]}, ".image.a[1]", "object"),
        ([Client()], ".image[0]", "holdfast.client.Client"),
        (sys, ".image", "module"),
        (lambda: None, ".image", "function"),
    ],
)
def test_an_argument_that_cannot_be_stored(value: object, place: str, kind: str) -> None:
    with refuse(
        f"args of resize{place} is a value of type {kind}, which cannot be stored as JSON. Pass plain values, "
        "a dataclass or a pydantic model, or an id by which the task loads it."
    ):
        build_job_request(resize(value), {})


def test_a_result_that_was_not_awaited() -> None:
    async def load() -> int:
        return 1

    with refuse("output is a value of type coroutine, which cannot be stored as JSON. Await it first."):
        encode_payload(load(), what="output")


async def test_awaiting_a_call() -> None:
    with pytest.raises(TypeError) as caught:
        await resize("x")  # type: ignore[misc]
    assert str(caught.value) == (
        "a call of task 'resize' cannot be awaited; submit it: await client.submit(resize(...))"
    )


@pytest.mark.parametrize("method", ["delay", "apply_async", "send", "enqueue", "defer", "kiq"])
def test_the_method_of_another_library(method: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(resize, method)
    assert str(caught.value) == (
        f"task 'resize' has no method '{method}'; submit a call of it: client.submit(resize(...))"
    )


def test_a_call_that_was_never_submitted() -> None:
    with pytest.warns(RuntimeWarning) as caught:
        resize("x")
    assert str(caught[0].message) == (
        "call of task resize was never submitted; write `await client.submit(resize(...))`, or in code without "
        "an event loop `client.blocking.submit(resize(...))`"
    )


async def test_submitting_something_else() -> None:
    async def mail() -> None: ...

    client: Any = Client()
    with refuse(
        "client.submit needs a call, and got the task 'resize' itself. Call the task with its arguments: "
        "client.submit(resize(...))."
    ):
        await client.submit(resize)
    with refuse(
        "client.submit got a coroutine of 'mail', which is not a task. Decorate the function: @task above "
        "`async def mail`."
    ):
        await client.submit(mail())
    with refuse(
        "client.submit needs the call of a task, got 'mail'. Decorate the function with @task and pass its call: "
        "client.submit(my_task(...))."
    ):
        await client.submit("mail")
    with refuse(
        "submit_many cannot give one key to many jobs. Give each call its own: "
        "submit_many(my_task(x).options(key=...) for x in ...)."
    ):
        await client.submit_many([resize("x")], key="k")


def use_as_text(result: Any) -> Any:
    return f"{result}"


@pytest.mark.parametrize(
    "use",
    [
        use_as_text,
        str,
        bool,
        list,
        len,
        int,
        lambda result: result + 1,
        lambda result: "a" + result,
        lambda result: result["key"],
        lambda result: result > 1,
        lambda result: "x" in result,
    ],
)
def test_the_result_of_a_node_as_a_value(use: Any) -> None:
    node = Graph("book").add(resize("x"), name="part")
    with refuse(
        "The result of 'part' has no value yet: the graph has not run. Pass node.result to another call as it "
        "is: graph.add(other_task(node.result)). The value arrives there."
    ):
        use(node.result)


def test_an_attribute_of_the_result_of_a_node() -> None:
    node: Any = Graph("book").add(resize("x"), name="part")
    with pytest.raises(AttributeError, match="The result of 'part' has no value yet"):
        _ = node.result.upper
    assert repr(node.result) == "ResultReference(task='part')"


def test_a_node_instead_of_its_result() -> None:
    graph = Graph("book")
    part: Any = graph.add(resize("x"), name="part")
    with refuse("An argument of join is the node 'part' itself. Pass its result: join(node.result)."):
        graph.add(join([part]))
    with refuse(
        "graph.add needs a call, and got the task 'join' itself. Call the task with its arguments: "
        "graph.add(join(...))."
    ):
        graph.add(join)  # type: ignore[arg-type]


def test_the_result_of_a_node_outside_of_its_graph() -> None:
    part = Graph("book").add(resize("x"), name="part")
    with refuse(
        "The arguments of join have the result of 'part', which is a task of a graph. Add the call to the same "
        "graph: graph.add(join(...))."
    ):
        build_job_request(join([part.result]), {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 3}, "limit is an option of the task and cannot differ between its calls. Write @task(limit=...), or declare a second task."),
        ({"retries": 1.5}, "retries must be a whole number of at least 0, got 1.5. Write retries=3."),
        ({"timeout": -1}, "timeout must be positive, got -1 day, 23:59:59."),
        ({"delay": 1, "run_at": datetime(2026, 1, 1, tzinfo=UTC)}, "Both delay and run_at are set. Pass one of them."),
        (
            {"retrys": 1},
            "options has no option 'retrys'; did you mean 'retry'? Options: queue, retries, retry, timeout, lease, "
            "max_crashes, priority, limit_key, delay, run_at, expires_at, key, unique, owner, labels, debounce, throttle.",
        ),
    ],
)  # fmt: skip
def test_wrong_options_of_a_call(options: Any, message: str) -> None:
    with refuse(message):
        use_call(resize("x")).options(**options)


def test_options_of_a_job_in_a_graph_and_in_a_schedule() -> None:
    with refuse(
        "A call in a graph cannot have the option key. Pass it to submit(graph, ...), for the whole job."
    ):
        Graph("book").add(resize("x").options(key="k"))
    with refuse(
        "A call of a schedule cannot have the option unique. Leave it out; a schedule submits many jobs."
    ):
        schedule(resize("x").options(unique="k"), every=60)


def test_options_of_a_call_replace_those_of_its_task_and_of_submit() -> None:
    options: CallOptions = {
        "queue": "slow",
        "retries": 9,
        "timeout": 30,
        "priority": 5,
        "limit_key": "e.example",
    }
    call = resize("x").options(**options).options(labels={"b": "2"})
    assert repr(call) == (
        "resize(image='x').options(queue='slow', retries=9, timeout=30, priority=5, limit_key='e.example', "
        "labels={'b': '2'})"
    )
    request = build_job_request(call, {"priority": 1, "owner": "ann", "labels": {"a": "1"}})
    request.pop("args")
    assert request == {
        "type": "resize", "queue": "slow", "attempts": 10, "base_s": 5, "cap_s": 900, "jitter": 0.2, "timeout_s": 30,
        "priority": 5, "limit_key": "e.example", "owner": "ann", "labels": {"a": "1", "b": "2"},
    }  # fmt: skip
    assert (resize.queue, resize.retry.retries, call.task) == ("default", 4, resize)


def test_a_start_time_of_the_call_replaces_that_of_submit() -> None:
    request = build_job_request(resize("x").options(delay=5), {"run_at": datetime(2026, 1, 1, tzinfo=UTC)})
    assert (request["delay_s"], request.get("run_at")) == (5, None)
