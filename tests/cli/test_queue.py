"""`holdfast queue` on a real database."""

from __future__ import annotations

import pytest
from shell import Captured, Shell

from holdfast.settings import Secret


@pytest.fixture
def shell(url: Secret, capsys: Captured) -> Shell:
    return Shell(url, capsys)


def test_queue_is_created_listed_shown_and_dropped(shell: Shell) -> None:
    assert shell("queue", "list") == ""
    assert shell("queue", "create", "Post") == "Message queue Post exists.\n"
    assert shell("queue", "create", "fast", "--unlogged") == "Message queue fast exists.\n"
    shell("msg", "send", "post", "n:=1")
    listed = {q["queue"]: q for q in shell.json("queue", "list")}
    assert {name: (q["total"], q["unlogged"]) for name, q in listed.items()} == {
        "Post": (1, False),
        "fast": (0, True),
    }
    assert shell("queue", "list").splitlines()[1].split("\t")[:4] == ["Post", "messages", "active", "1"]
    [shown] = shell.json("queue", "show", "Post")
    assert (shown["visible"], shown["policy"]["vt"]) == (1, "30s")
    assert shell("queue", "drop", "Post", "--yes") == "Queue Post is deleted.\n"
    assert [q["queue"] for q in shell.json("queue", "list")] == ["fast"]


@pytest.mark.parametrize("verb", ["drop", "purge"])
def test_drop_and_purge_need_confirmation(shell: Shell, verb: str) -> None:
    shell("queue", "create", "q")
    shell("msg", "send", "q", "1")
    assert "--yes" in shell("queue", verb, "q", code=5)
    assert "Nothing was changed" in shell("queue", verb, "q", "--dry-run")
    assert shell.json("queue", "show", "q")[0]["total"] == 1
    shell("queue", verb, "q", "--yes")
    assert shell.json("queue", "list") == ([] if verb == "drop" else shell.json("queue", "list"))
    if verb == "purge":
        assert shell.json("queue", "show", "q")[0]["total"] == 0


def test_policy_changes_only_named_settings(shell: Shell) -> None:
    shell("queue", "create", "q")
    [before] = shell.json("queue", "policy", "q")
    assert (before["max_reads"], before["dead_letters"], before["backoff"]) == (None, None, "5s")
    shell("queue", "policy", "q", "--max-reads", "3", "--dead-letters", "graves", "--archive-retention", "7d")
    [after] = shell.json("queue", "policy", "q", "--backoff", "250ms", "--archive-retention", "none")
    assert after == {
        **before, "max_reads": 3, "dead_letters": "graves", "backoff": "0.25s", "archive_retention": None,
    }  # fmt: skip
    assert {q["queue"] for q in shell.json("queue", "list")} == {"q", "graves"}


@pytest.mark.parametrize(
    "words",
    [
        ["show", "none"],
        ["purge", "none", "--yes"],
        ["drop", "none", "--yes"],
        ["policy", "none"],
        ["policy", "none", "--vt", "1s"],
    ],
)
def test_missing_queue_is_exit_code_3(shell: Shell, words: list[str]) -> None:
    error = shell("queue", *words, code=3)
    assert error.startswith("error: Message queue 'none' does not exist.")
    assert "fix: Create it with `holdfast queue create none`" in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["create", "a;b"], "not allowed"),
        (["create", "x" * 48], "47 bytes"),
        (["create", "q", "--unlogged", "--partition", "100"], "not both"),
        (["create", "q", "--partition", "100"], "pg_partman is required"),
        (["policy", "q", "--vt", "soon"], "write a number and a unit"),
        (["policy", "q", "--max-reads", "0"], "max_reads must be"),
        (["policy", "q", "--max-reads", "x"], "not a valid integer"),
        (["policy", "q", "--dead-letters", "q"], "its own dead-letter queue"),
    ],
)
def test_invalid_arguments_are_exit_code_2(shell: Shell, words: list[str], message: str) -> None:
    if words[0] == "policy":
        shell("queue", "create", "q")
    assert message in shell("queue", *words, code=2)


def test_database_without_schema_is_exit_code_4(empty_url: Secret, capsys: Captured) -> None:
    assert "holdfast migrate" in Shell(empty_url, capsys)("queue", "list", code=4)
