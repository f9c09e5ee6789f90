from __future__ import annotations

import json
import logging
from collections.abc import Generator
from typing import Literal

import pytest

from holdfast import telemetry
from holdfast.cli import log_output
from holdfast.settings import Secret, Settings


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    log = logging.getLogger("holdfast")
    before = (log.handlers, log.level, log.propagate)
    monkeypatch.setattr(telemetry, "_subscribers", ())
    yield
    log.handlers, log.level, log.propagate = before


def test_json_lines_parse_whatever_is_in_them(capsys: pytest.CaptureFixture[str]) -> None:
    log_output.configure_logging(Settings(log_format="json"))
    telemetry.emit(
        "task.finished", error='line\n"two"\x1b[31m', seconds=1.5, outcome="fail", key=Secret("hunter2")
    )
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    line = json.loads(err)
    assert (line["event"], line["level"], line["seconds"]) == ("task.finished", "warning", 1.5)
    assert line["error"] == 'line\n"two"\x1b[31m'
    assert "hunter2" not in err


def test_human_lines_are_one_line_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    log_output.configure_logging(Settings())
    telemetry.emit("task.finished", error="two\nlines\x1b[31m", task="t", key=Secret("hunter2"))
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "\x1b" not in err
    assert "task=t" in err
    assert "hunter2" not in err


def test_levels_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    log_output.configure_logging(Settings(log_level="warning"))
    telemetry.emit("worker.started", worker="w")
    telemetry.emit("task.lease_lost", task="t")
    err = capsys.readouterr().err
    assert "worker.started" not in err
    assert "task.lease_lost" in err


@pytest.mark.parametrize(
    ("name", "outcome", "level"),
    [
        ("task.finished", "succeed", "debug"),
        ("task.finished", "snooze", "debug"),
        ("task.finished", "cancel", "info"),
        ("task.finished", "fail", "warning"),
        ("task.finished", "reject", "warning"),
        ("message.finished", "archive", "debug"),
        ("message.finished", "dead_letter", "warning"),
        ("outcome.refused", "succeed", "warning"),
        ("database.still_unreachable", None, "warning"),
        ("database.connection_restored", None, "info"),
    ],
)
def test_success_is_shown_only_for_debugging(
    capsys: pytest.CaptureFixture[str], name: str, outcome: str | None, level: str
) -> None:
    log_output.configure_logging(Settings())
    telemetry.emit(name, task="t", outcome=outcome)
    assert bool(capsys.readouterr().err) is (level != "debug")
    log_output.configure_logging(Settings(log_level="debug", log_format="json"))
    telemetry.emit(name, task="t", outcome=outcome)
    assert json.loads(capsys.readouterr().err)["level"] == level


def test_a_traceback_stays_inside_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    log_output.configure_logging(Settings(log_format="json"))
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("holdfast.x").exception("it broke")
    line = json.loads(capsys.readouterr().err)
    assert "ValueError: no" in line["traceback"]


@pytest.mark.parametrize("log_format", ["json", "human"])
def test_errors_in_log_lines_are_redacted(
    capsys: pytest.CaptureFixture[str], log_format: Literal["json", "human"]
) -> None:
    log_output.configure_logging(Settings(log_format=log_format))
    leak = "connect to postgres://app:hunter2@db failed, api_key=hunter2, Authorization: Bearer hunter2"
    telemetry.emit("task.finished", outcome="fail", error=leak)
    telemetry.emit("outcome.refused", reason=leak)
    try:
        raise ValueError(leak)
    except ValueError:
        logging.getLogger("holdfast.worker").exception("A service failed.")
    err = capsys.readouterr().err
    assert err.count("•••") >= 9
    assert "hunter2" not in err
