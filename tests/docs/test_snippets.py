"""Tests that every block of code in the docs is run by a test, or says why it is not.

Python is covered by `test_examples.py` (guides), `test_tutorial.py` and `test_coming_from.py` (blocks with a
title). This module runs the SQL, and it checks that every option of every command exists. A block that no
test runs has a line `<!-- not run: reason -->` before it.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
from all_systems import install_all_systems
from shell import Captured, Shell

from holdfast.cli.root import run_command_line
from holdfast.engine.connection import Connection
from holdfast.settings import Secret

ROOT = Path(__file__).resolve().parents[2]
BLOCK_PATTERN = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n\n)?"
    r"^```(?P<language>\w*)(?P<info>[^\n]*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
# The language `text` is for output and diagrams.
CHECKED_ELSEWHERE = {"text", "python", "sql", "json"}
# Pages whose shell commands a test runs as printed.
PAGES_THAT_RUN = {"quickstart.md": "test_quickstart.py"}
# Blocks of commands that this module runs, by page and first line.
COMMANDS_THAT_RUN = {
    ("files.md", "holdfast file retention 30d"),
    ("files.md", "holdfast file quota --bytes 100M --operations 100"),
    ("messages.md", "holdfast queue policy orders --max-reads 5 --backoff 10s --dead-letters graves"),
    ("alerts.md", "holdfast alert rule list"),
    ("install.md", "holdfast migrate sql > holdfast.sql"),
}


@dataclass(frozen=True)
class Block:
    page: Path
    language: str
    info: str
    code: str
    reason: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.code.partition(chr(10))[0][:60]}"

    @property
    def is_run_here(self) -> bool:
        return any(
            self.page.name == page and self.code.startswith(start) for page, start in COMMANDS_THAT_RUN
        )


def read_blocks() -> list[Block]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        Block(page, match["language"], match["info"], match["code"], match["reason"] or "")
        for page in pages
        if not {"decisions", "reference"} & set(page.parts)
        for match in BLOCK_PATTERN.finditer(page.read_text(encoding="utf-8"))
    ]


BLOCKS = read_blocks()
SQL_PAGES = sorted({block.page for block in BLOCKS if block.language == "sql" and not block.reason})
JSON_BLOCKS = [block for block in BLOCKS if block.language == "json"]


def list_commands(block: Block) -> list[list[str]]:
    """Return the words of each `holdfast` command of a block, without comments and redirections."""
    lines = [re.split(r"\s+#|\s>\s|\s&&\s", line)[0] for line in block.code.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("holdfast ")]


COMMAND_BLOCKS = [block for block in BLOCKS if block.language == "sh" and list_commands(block)]


def test_every_block_runs_or_says_why_not() -> None:
    missing = [
        block.name
        for block in BLOCKS
        if not block.reason
        and block.language not in CHECKED_ELSEWHERE
        and "title=" not in block.info
        and block.page.name not in PAGES_THAT_RUN
        and not block.is_run_here
    ]
    assert not missing, "Run these blocks in a test, or write <!-- not run: reason --> before them."
    commands = {
        (page, start)
        for page, start in COMMANDS_THAT_RUN
        for block in BLOCKS
        if block.page.name == page and block.code.startswith(start)
    }
    assert commands == COMMANDS_THAT_RUN


@pytest.mark.parametrize("block", COMMAND_BLOCKS, ids=lambda block: block.name)
def test_options_of_commands_exist(block: Block, capsys: Captured) -> None:
    for words in list_commands(block):
        code = run_command_line([*words, "--help"])  # an unknown option is an error before the help
        assert code == 0, f"{words}: {capsys.readouterr().err}"


@pytest.mark.parametrize("block", JSON_BLOCKS, ids=lambda block: block.name)
def test_json_is_valid(block: Block) -> None:
    assert json.loads(block.code)


def test_commands_run_as_printed(url: Secret, capsys: Captured) -> None:
    shell = Shell(url, capsys)
    shell.query(lambda connection: connection.execute("select pgmq.create('orders')"))
    shell("alert", "channel", "add", "pager", "webhook", "https://example.com/alerts")
    for block in COMMAND_BLOCKS:
        if block.is_run_here:
            for words in list_commands(block):
                shell(*words)


async def test_sql_runs_as_printed(conn: Connection) -> None:
    await install_all_systems(conn, "public")
    for page in SQL_PAGES:
        transaction = conn.transaction()
        await transaction.start()
        for block in BLOCKS:
            if block.page == page and block.language == "sql" and not block.reason:
                await run_sql(conn, block)
        await transaction.rollback()


async def run_sql(conn: Connection, block: Block) -> None:
    code = block.code.replace("{}", "public")  # the place of the schema in the tables of a system
    try:
        await conn.execute(code)
    except Exception as error:
        error.add_note(block.name)
        raise
