"""What every command has in common: short help, suggestions, `--json` and `-n`."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
import pytest
from shell import Captured, Shell

from holdfast.cli.root import root_command, run_command_line
from holdfast.settings import Secret

# Commands that run until they are stopped, or whose output is a document or a file of its own.
WITHOUT_JSON = {
    *("api", "worker", "dev", "demo", "mcp", "completion", "openapi", "schema", "db psql", "job export"),
    *("migrate sql", "migrate grants", "shard add", "shard drain", "shard remove"),
}


@pytest.fixture
def shell(url: Secret, capsys: Captured) -> Shell:
    return Shell(url, capsys)


def iterate_commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from iterate_commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


def list_option_names(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


def test_every_verb_prints_json_and_every_list_takes_n() -> None:
    commands = dict(iterate_commands(root_command))
    missing_json = {path for path, command in commands.items() if "--json" not in list_option_names(command)}
    assert missing_json == WITHOUT_JSON
    lists = {path: command for path, command in commands.items() if path.endswith(" list")}
    assert {path for path, command in lists.items() if "-n" not in list_option_names(command)} == set()
    limited = [path for path, command in commands.items() if "--limit" in list_option_names(command)]
    assert [path for path in limited if "-n" not in list_option_names(commands[path])] == []


def test_help_fits_on_two_screens_and_names_no_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["--help"]) == 0
    output = capsys.readouterr().out
    assert len(output.splitlines()) < 75
    assert "holdfast settings" in output
    assert "--egress-allow" not in output


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [(["jbo"], "job"), (["queeu", "list"], "queue"), (["job", "lsit"], "list"), (["alert", "lst"], "list")],
)
def test_a_mistyped_command_is_an_error_with_a_suggestion(
    arguments: list[str], suggestion: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(arguments) == 2
    assert f"Did you mean '{suggestion}'?" in capsys.readouterr().err


def test_settings_are_listed_without_secrets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SMTP_URL", "smtp://jobs:hunter2@mail.x.test")
    assert run_command_line(["settings", "smtp", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[0]["setting"] == "smtp_url"
    assert rows[0]["changed"] is True
    assert rows[0]["environment"] == "HOLDFAST_SMTP_URL"
    assert run_command_line(["settings"]) == 0
    assert "hunter2" not in capsys.readouterr().out
    assert run_command_line(["settings", "no such thing"]) == 3


def test_changes_print_json(shell: Shell) -> None:
    shell("cron", "add", "nightly", "report", "--cron", "0 3 * * *", "--queue", "default")
    assert shell.json("cron", "pause", "nightly") == [{"name": "nightly", "changed": True}]
    assert shell.json("cron", "resume", "nightly") == [{"name": "nightly", "changed": True}]
    assert shell.json("cron", "delete", "nightly", "--yes") == [{"deleted": "nightly"}]
    shell("limit", "set", "x", "--max-running", "1")
    shell("limit", "set", "y", "--max-running", "1")
    assert [row["name"] for row in shell.json("limit", "list", "-n", "1")] == ["x"]
    [dry_run] = shell.json("limit", "delete", "x", "--dry-run")
    assert dry_run["dry_run"] is True
    assert shell.json("limit", "delete", "x", "--yes") == [{"deleted": "x"}]
    assert shell.json("queue", "create", "orders") == [{"queue": "orders"}]
    assert shell.json("queue", "purge", "orders", "--yes") == [{"queue": "orders", "messages": 0}]
    assert shell.json("queue", "drop", "orders", "--yes") == [{"deleted": "orders", "messages": 0}]
    [rule] = shell.json("file", "retention", "30d", "--owner", "ann")
    assert (rule["owner"], rule["ttl"]) == ("ann", "30d")
