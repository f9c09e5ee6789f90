"""Tests that commands, settings and error classes that the docs mention exist."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from holdfast import errors
from holdfast.cli.root import root_command
from holdfast.settings import ENVIRONMENT_PREFIX, Settings

ROOT = Path(__file__).resolve().parents[2]
DOC_PAGES = [
    page
    for page in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    # Decisions and the status describe other times; the reference is generated.
    if not {"decisions", "reference"} & set(page.parts) and page.name != "status.md"
]
COMMAND_PATTERN = re.compile(
    r"(?:^|&& |; |bin/|\$ |-m )holdfast((?: [a-z][a-z-]*(?![\w/.=]))+)", re.MULTILINE
)
CODE_PATTERN = re.compile(r"```(?:sh|text|console)?\n(.*?)```|`([^`\n]+)`", re.DOTALL)
# Variables that are read outside of the settings: by the tests, the templates and the scripts.
OTHER_VARIABLES = {"HOLDFAST_PG_BIN"}


def iterate_commands(text: str) -> Iterator[list[str]]:
    for block, inline in CODE_PATTERN.findall(text):
        for words in COMMAND_PATTERN.findall(block or inline):
            yield words.split()


def find_unknown_word(words: list[str]) -> str | None:
    """Return the first word that is neither a command nor an argument of one."""
    command: click.Command = root_command
    for word in words:
        if not isinstance(command, click.Group):
            return None
        context = click.Context(command)
        subcommand = command.get_command(context, word)
        if subcommand is None:
            return word
        command = subcommand
    return None


@pytest.mark.parametrize("page", DOC_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_the_docs_exist(page: Path) -> None:
    unknown = [" ".join(words) for words in iterate_commands(page.read_text()) if find_unknown_word(words)]
    assert not unknown


def test_settings_of_the_docs_exist() -> None:
    known = {f"{ENVIRONMENT_PREFIX}{field.name.upper()}" for field in dataclasses.fields(Settings)}
    named = {
        (page.name, name)
        for page in DOC_PAGES
        for name in re.findall(rf"\b{ENVIRONMENT_PREFIX}[A-Z0-9_]+\b", page.read_text())
    }
    assert not {(page, name) for page, name in named if name not in known | OTHER_VARIABLES}


def test_errors_of_the_troubleshooting_page_exist() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    python_names = {"RuntimeWarning"}
    named = set(re.findall(r"`([A-Z]\w+(?:Error|Warning))\b", page))
    assert named - python_names
    assert not [name for name in named - python_names if not hasattr(errors, name)]
