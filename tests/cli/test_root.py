from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import click
import pytest

from holdfast.cli.root import root, run
from holdfast.settings import Settings
from holdfast.version import __version__


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"holdfast {__version__}\n"


@pytest.mark.parametrize("arguments", [["nonsense"], ["--nonsense"], ["completion", "cmd"], ["completion"]])
def test_wrong_usage_is_exit_2_with_a_hint_and_no_traceback(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert "--help" in captured.err


def test_a_noun_alone_says_what_it_can_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["workers"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("Usage: holdfast workers")
    assert "drain" in said
    assert "error:" not in said


def test_errors_are_objects_when_a_program_reads(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["nonsense", "--json"]) == 2
    assert set(json.loads(capsys.readouterr().err)) == {"error", "fix"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    assert "_HOLDFAST_COMPLETE" in capsys.readouterr().out


def test_completion_completes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast"],
        env={"_HOLDFAST_COMPLETE": "bash_complete", "COMP_WORDS": "holdfast comp", "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "plain,completion\n"


def test_every_command_explains_itself() -> None:
    def commands(group: click.Group) -> list[click.Command]:
        context = click.Context(group)
        known = [group.get_command(context, name) for name in group.list_commands(context)]
        return [
            each
            for command in known
            if command is not None
            for each in (command, *(commands(command) if isinstance(command, click.Group) else ()))
        ]

    silent = [command.name for command in commands(root) if not command.help]
    assert not silent


def test_every_setting_is_an_option_of_the_same_name() -> None:
    options = {option for parameter in root.params for option in parameter.opts}
    assert {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(Settings)} <= options


def test_a_bad_setting_on_the_command_line_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--pool-size", "many", "db", "status"]) == 2
    assert "pool_size" in capsys.readouterr().err
