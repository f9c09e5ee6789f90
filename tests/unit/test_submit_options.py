from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from holdfast.client.submit_options import SubmitOptions, build_job_request, build_submit_options
from holdfast.definitions.graphs import Graph
from holdfast.definitions.tasks import RetryPolicy, task
from holdfast.errors import InvalidError


@task(queue="q", priority=3, timeout=timedelta(minutes=1), retry=RetryPolicy(retries=2, jitter=0))
def special(x: int) -> int:
    return x


@task
def plain(x: int, y: int = 2) -> int:
    return x


def decode_json(value: object) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def test_a_request_contains_only_what_differs_from_the_defaults() -> None:
    assert decode_json(build_job_request(plain(1), {})) == {
        "type": "plain",
        "queue": "default",
        "args": {"x": 1},
    }


def test_a_request_contains_the_policy_and_the_options() -> None:
    options: SubmitOptions = {
        "key": "k",
        "unique": "u",
        "owner": "o",
        "priority": 5,
        "delay": timedelta(minutes=2),
        "labels": {"a": "b"},
    }
    assert decode_json(build_job_request(special(1), options)) == {
        "type": "special", "queue": "q", "args": {"x": 1}, "timeout_s": 60, "attempts": 3, "base_s": 5,
        "cap_s": 900, "jitter": 0, "priority": 5, "key": "k", "unique_key": "u", "owner": "o", "delay_s": 120,
        "labels": {"a": "b"},
    }  # fmt: skip


def test_the_crash_budget_is_an_option_of_the_task() -> None:
    @task(max_crashes=7)
    def fragile() -> None: ...

    assert decode_json(build_job_request(fragile(), {}))["crashes"] == 7
    with pytest.raises(InvalidError, match="max_crashes must be a whole number from 1 to 1000, got 0"):
        task(max_crashes=0)(lambda: None)


def test_a_graph_names_its_tasks_and_edges() -> None:
    g = Graph("report")
    first = g.add(plain(1))
    g.add(plain(first.result), weight=3, on_failure="skip")
    body = decode_json(build_job_request(g, {}))
    assert body["type"] == "report"
    assert [t["name"] for t in body["tasks"]] == ["plain", "plain-2"]
    assert body["tasks"][1]["after"] == [{"name": "plain", "on_failure": "skip"}]
    assert body["tasks"][1]["weight"] == 3


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"run_at": datetime(2026, 1, 1)}, "run_at has no time zone"),  # noqa: DTZ001
        ({"run_at": "tomorrow"}, "run_at must be a datetime, got 'tomorrow'"),
        (
            {"delay": timedelta(1), "run_at": datetime(2026, 1, 1, tzinfo=UTC)},
            "Both delay and run_at are set. Pass one of them.",
        ),
        ({"debounce": "1m"}, "debounce must be a timedelta or a number of seconds, got '1m'"),
        ({"prio": 3}, "submit has no option 'prio'; did you mean 'priority'?"),
        ({"zebra": 3}, "submit has no option 'zebra'. Options: key, unique, owner"),
        ({"batch": "x"}, "'x' is not the id of a batch"),
    ],
)
def test_wrong_options_are_refused(options: Any, error: str) -> None:
    with pytest.raises(InvalidError, match=error):
        build_submit_options(options)


def test_an_empty_graph_is_refused() -> None:
    with pytest.raises(InvalidError, match="no tasks"):
        build_job_request(Graph("report"), {})
