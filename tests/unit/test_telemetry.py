from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import telemetry


def test_subscribers_get_events_until_they_unsubscribe() -> None:
    seen: list[tuple[str, dict[str, Any]]] = []
    with telemetry.subscription(lambda name, fields: seen.append((name, fields))):
        telemetry.emit("worker.started", worker="w1")
    telemetry.emit("worker.stopped", worker="w1")
    assert seen == [("worker.started", {"worker": "w1"})]


def test_subscribing_twice_is_subscribing_once() -> None:
    seen: list[str] = []

    def note(name: str, _: dict[str, Any]) -> None:
        seen.append(name)

    with telemetry.subscription(note), telemetry.subscription(note):
        telemetry.emit("worker.started")
    assert seen == ["worker.started"]


def test_a_subscriber_that_raises_affects_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    def broken(name: str, fields: dict[str, Any]) -> None:
        raise RuntimeError(name)

    with telemetry.subscription(broken), telemetry.subscription(lambda name, _: seen.append(name)):
        telemetry.emit("worker.started")
    assert seen == ["worker.started"]
    assert "telemetry subscriber failed on worker.started" in caplog.text


def test_an_unknown_event_is_refused() -> None:
    with telemetry.subscription(lambda *_: None), pytest.raises(ValueError, match="unknown event"):
        telemetry.emit("worker.exploded")


def find_event_names(tree: ast.AST) -> Iterator[str]:
    """Yield the event names that a module passes to functions of the telemetry module."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and node.args):
            continue
        name = node.args[0]
        function = ast.unparse(node.func)
        is_emit = function == "emit" or function.startswith("telemetry.")  # systems import `emit` alone
        if is_emit and isinstance(name, ast.Constant) and isinstance(name.value, str):
            yield name.value


def test_every_emitted_event_is_documented_and_every_documented_event_is_emitted() -> None:
    package = Path(telemetry.__file__).parent
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in package.rglob("*.py")]
    emitted = {name for tree in trees for name in find_event_names(tree)}
    assert emitted == set(telemetry.EVENT_DESCRIPTIONS)
