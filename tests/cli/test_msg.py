"""`holdfast msg` on a real database."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from shell import Captured, Shell

from holdfast.engine import audit
from holdfast.settings import Secret


@pytest.fixture
def shell(url: Secret, capsys: Captured) -> Shell:
    shell = Shell(url, capsys)
    shell("queue", "create", "q")
    return shell


def bodies(shell: Shell, *words: str) -> list[Any]:
    return [m["body"] for m in shell.json("msg", "peek", "q", *words)]


BODY_CASES = [
    (['{"a": [1, null]}'], {"a": [1, None]}),
    (['"text = text"'], "text = text"),
    (["3"], 3),
    (["a=1", "b:=1", "c:=[true]", "d=x=y"], {"a": "1", "b": 1, "c": [True], "d": "x=y"}),
    (["a="], {"a": ""}),
]


@pytest.mark.parametrize(("words", "body"), BODY_CASES)
def test_send_accepts_json_and_pairs(shell: Shell, words: list[str], body: object) -> None:
    assert shell("msg", "send", "q", *words) == "1\n"
    assert bodies(shell) == [body]


def test_send_reads_files_and_standard_input(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "body.json"
    file.write_text('{"from": "file"}')
    shell("msg", "send", "q", f"@{file}")
    monkeypatch.setattr("sys.stdin", io.StringIO('{"from": "stdin"}\n'))
    shell("msg", "send", "q", "-")
    monkeypatch.setattr("sys.stdin", io.StringIO('1\n\n{"two": 2}\n'))
    assert shell("msg", "send", "q", "--lines") == "3\n4\n"
    assert bodies(shell) == [{"from": "file"}, {"from": "stdin"}, 1, {"two": 2}]


def test_send_with_headers_and_delay(shell: Shell) -> None:
    shell("msg", "send", "q", "1", "-H", "trace=abc", "-H", "n:=2", "--delay", "1h")
    later = (datetime.now(UTC) + timedelta(hours=2)).isoformat()
    shell("msg", "send", "q", "2", "--at", later)
    first, second = shell.json("msg", "peek", "q")
    assert first["headers"] == {"trace": "abc", "n": 2}
    assert second["headers"] is None
    assert shell.json("msg", "read", "q") == []


def test_receipt_archives_and_deletes(shell: Shell) -> None:
    for n in range(3):
        shell("msg", "send", "q", f"n:={n}")
    first, second = shell.json("msg", "read", "q", "-n", "2", "--vt", "5m")
    assert (first["body"], first["reads"]) == ({"n": 0}, 1)
    assert shell("msg", "set-vt", "q", "0s", first["receipt"]) == "1\n"
    [again] = shell.json("msg", "read", "q", "--where", '{"n": 0}')
    assert (again["id"], again["reads"]) == (1, 2)
    assert "was read again by another reader" in shell("msg", "archive", "q", first["receipt"], code=1)
    assert shell("msg", "archive", "q", again["receipt"]) == "1\n"
    assert shell("msg", "delete", "q", second["receipt"], "--yes") == "2\n"
    assert bodies(shell) == [{"n": 2}]
    assert bodies(shell, "--archive") == [{"n": 0}]
    assert shell.json("msg", "archive", "q", "3") == [{"id": 3}]


def test_delete_needs_confirmation(shell: Shell) -> None:
    shell("msg", "send", "q", "1")
    assert "--yes" in shell("msg", "delete", "q", "1", code=5)
    assert "Nothing was changed" in shell("msg", "delete", "q", "1", "--dry-run")
    assert bodies(shell) == [1]


def test_missing_ids_are_exit_code_3_and_the_others_are_archived(shell: Shell) -> None:
    shell("msg", "send", "q", "1")
    assert "These messages are not in queue 'q': 7, 9. The others were archived." in shell(
        "msg", "archive", "q", "9", "1", "7", code=3
    )
    assert bodies(shell, "--archive") == [1]
    error = shell("msg", "requeue", "q", "5", "--archive", code=3)
    assert "These messages are not in the archive of queue 'q': 5" in error


def test_peek_shows_the_error_of_a_failed_message(shell: Shell, url: Secret) -> None:
    shell("msg", "send", "q", "1")
    shell("msg", "send", "q", "2")
    [taken] = shell.json("msg", "read", "q")
    with psycopg.connect(url.reveal()) as connection:
        connection.execute(
            "select holdfast.fail_messages('q', array[%s], E'ValueError: no\n  line 1')", [taken["receipt"]]
        )
    failed, untried = shell.json("msg", "peek", "q")
    assert (failed["error"], untried["error"]) == ("ValueError: no\n  line 1", None)
    assert failed["failed_at"] is not None
    assert "ValueError: no" in shell("msg", "peek", "q")


def test_dead_letters_are_shown_with_their_error_and_requeued(shell: Shell) -> None:
    shell("queue", "policy", "q", "--max-reads", "1")
    shell("msg", "send", "q", "poison", code=2)
    shell("msg", "send", "q", '"poison"', "-H", "h=1")
    shell("msg", "read", "q", "--vt", "0s")
    assert shell.json("msg", "read", "q") == []
    [dead_letter] = shell.json("msg", "dead-letters", "q")
    assert (dead_letter["body"], dead_letter["error"]) == ("poison", "read more than max_reads times")
    assert dead_letter["headers"] == {"h": "1"}
    assert "read more than" in shell("msg", "dead-letters", "q")
    assert shell.json("msg", "requeue", "q") == [{"old_id": 1, "new_id": 2}]
    actions = [entry.action for entry in shell.query(audit.list_audit_entries)]
    assert actions == ["message.requeue", "messages.policy", "messages.create"]
    [back] = shell.json("msg", "peek", "q")
    assert (back["body"], back["headers"], back["reads"]) == ("poison", {"h": "1"}, 0)
    assert shell.json("msg", "dead-letters", "q") == []


@pytest.mark.parametrize(
    "words",
    [
        ["send", "none", "1"],
        ["read", "none"],
        ["peek", "none"],
        ["dead-letters", "none"],
        ["archive", "none", "1"],
        ["delete", "none", "1", "--yes"],
        ["set-vt", "none", "1s", "1"],
        ["requeue", "none"],
    ],
)
def test_missing_queue_is_exit_code_3(shell: Shell, words: list[str]) -> None:
    assert shell("msg", *words, code=3).startswith("error: Message queue 'none' does not exist.")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["send", "q"], "Give either a BODY"),
        (["send", "q", "{"], "not valid JSON"),
        (["send", "q", "a:=x"], "The value of a is not valid JSON"),
        (["send", "q", "a=1", "b"], "'b' is not a name and a value"),
        (["send", "q", "1", "--delay", "-5s"], "write a number and a unit"),
        (["send", "q", "1", "--delay", "1s", "--at", "2030-01-01"], "not both"),
        (["send", "q", "1", "--at", "tomorrow"], "2026-05-01"),
        (["read", "q", "-n", "0"], "0 is not in the range"),
        (["read", "q", "--vt", "99999999999d"], "--vt"),
        (["read", "q", "--vt", "40000d"], "vt must be from zero to a hundred years"),
        (["archive", "q", "x"], "neither a message id nor a receipt"),
        (["archive", "q", "99999999999999999999"], "not the id of a message"),
        (["archive", "q", "1.x"], "Invalid receipt"),
        (["read", "a;b"], "not allowed"),
    ],
)
def test_invalid_arguments_are_exit_code_2(shell: Shell, words: list[str], message: str) -> None:
    assert message in shell("msg", *words, code=2)
    assert bodies(shell) == []


def test_missing_file_is_exit_code_3(shell: Shell) -> None:
    assert "File nowhere.json does not exist" in shell("msg", "send", "q", "@nowhere.json", code=3)
