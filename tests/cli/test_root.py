from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import click
import pytest

from holdfast.cli.commands import COMMANDS_BY_NAME
from holdfast.cli.root import root_command, run_command_line
from holdfast.settings import Settings
from holdfast.version import __version__


def test_version_option_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["--version"]) == 0
    assert capsys.readouterr().out == f"holdfast {__version__}\n"


@pytest.mark.parametrize("arguments", [["nonsense"], ["--nonsense"], ["completion", "cmd"], ["completion"]])
def test_invalid_usage_is_exit_code_2_with_a_hint(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert "--help" in captured.err


def test_group_without_subcommand_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["workers"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("Usage: holdfast workers")
    assert "drain" in error
    assert "error:" not in error


def test_errors_are_json_objects_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["nonsense", "--json"]) == 2
    assert set(json.loads(capsys.readouterr().err)) == {"error", "fix"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_names_the_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["completion", shell]) == 0
    assert "_HOLDFAST_COMPLETE" in capsys.readouterr().out


def test_completion_suggests_commands() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast"],
        env={"_HOLDFAST_COMPLETE": "bash_complete", "COMP_WORDS": "holdfast comp", "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "plain,completion\n"


def test_every_command_has_a_help_text() -> None:
    def commands(group: click.Group) -> list[click.Command]:
        context = click.Context(group)
        known = [group.get_command(context, name) for name in group.list_commands(context)]
        return [
            each
            for command in known
            if command is not None
            for each in (command, *(commands(command) if isinstance(command, click.Group) else ()))
        ]

    silent = [command.name for command in commands(root_command) if not command.help]
    assert not silent


def test_help_lists_commands_first_and_options_last(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["--help"]) == 0
    output = capsys.readouterr().out
    positions = [output.index(heading) for heading in ("Get started:", "Run:", "Integrate:", "Options:")]
    assert positions == sorted(positions)
    for entry in COMMANDS_BY_NAME.values():
        assert f"  {entry.name} " in output


def test_command_table_matches_the_commands() -> None:
    """The table is read without importing the commands, so its help must be the summary of theirs."""
    for entry in COMMANDS_BY_NAME.values():
        command = root_command.get_command(click.Context(root_command), entry.name)
        assert command is not None
        assert command.name == entry.name
        assert entry.short_help.endswith(".")
        first_verb, command_verb = entry.short_help.split()[0], (command.help or "").split()[0]
        assert first_verb.rstrip(",") == command_verb.rstrip(","), entry.name


def test_every_option_has_a_help_text() -> None:
    def list_commands(group: click.Group, path: str) -> list[tuple[str, click.Command]]:
        context = click.Context(group)
        commands = [
            (f"{path} {name}", group.get_command(context, name)) for name in group.list_commands(context)
        ]
        existing = [(name, command) for name, command in commands if command is not None]
        nested = [each for name, command in existing if isinstance(command, click.Group)
                  for each in list_commands(command, name)]  # fmt: skip
        return [*existing, *nested]

    silent = [
        f"{path} {parameter.opts[0]}"
        for path, command in list_commands(root_command, "holdfast")
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden and not parameter.help
    ]
    assert silent == []


@pytest.mark.parametrize("name", COMMANDS_BY_NAME)
def test_lists_of_subcommands_show_whole_sentences(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line([name, "--help"]) == 0
    cut = [line for line in capsys.readouterr().out.splitlines() if line.endswith("...")]
    assert [line for line in cut if not line.startswith("Usage:")] == []


def test_every_setting_is_an_option_of_the_same_name() -> None:
    options = {option for parameter in root_command.params for option in parameter.opts}
    assert {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(Settings)} <= options


def test_invalid_setting_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["--pool-size", "many", "db", "status"]) == 2
    assert "pool_size" in capsys.readouterr().err
