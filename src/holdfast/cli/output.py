"""How commands speak: tables for people, one JSON object a line for programs, colours only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

Row = Mapping[str, Any]


class Output:
    def __init__(self) -> None:
        self.json = False
        self.console = Console(highlight=False, soft_wrap=True)
        self.terminal = self.console.is_terminal and sys.stdin.isatty()

    def line(self, text: str) -> None:
        """Prose for people; left out when a program is reading."""
        if not self.json:
            self.console.print(escape(harmless(text)))

    def value(self, name: str, value: object) -> None:
        """One bare value, so that `$(holdfast db url)` works."""
        if self.json:
            self._object({name: value})
        else:
            sys.stdout.write(f"{value}\n")

    def record(self, record: Row) -> None:
        if self.json:
            self._object(record)
            return
        width = max((len(name) for name in record), default=0)
        for name, value in record.items():
            self.line(f"{name:<{width}}  {_shown(value)}")

    def rows(self, rows: Sequence[Row], columns: Sequence[str]) -> None:
        if self.json:
            for row in rows:
                self._object(row)
        elif self.console.is_terminal:
            table = Table(box=None, header_style="bold", pad_edge=False)
            for column in columns:
                table.add_column(column, overflow="fold")
            for row in rows:
                table.add_row(*(escape(_shown(row.get(column))) for column in columns))
            self.console.print(table)
        else:
            for row in rows:
                sys.stdout.write("\t".join(_shown(row.get(column)) for column in columns) + "\n")

    def _object(self, record: Row) -> None:
        sys.stdout.write(msgspec.json.encode(dict(record), enc_hook=str).decode() + "\n")
        sys.stdout.flush()


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (dict, list)):
        value = msgspec.json.encode(value, enc_hook=str).decode()
    return harmless(str(value), keep="")


def harmless(text: str, keep: str = "\n\t") -> str:
    """Without the characters that a terminal obeys: names, errors and payloads come from anybody."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c in keep else " " for c in text)


def complain(message: str, fix: str | None, *, as_json: bool) -> None:
    """An error, on standard error: what is wrong, then what to do."""
    if as_json:
        sys.stderr.write(msgspec.json.encode({"error": message, "fix": fix}).decode() + "\n")
        return
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[bold red]error:[/] {escape(harmless(message))}")
    if fix:
        console.print(f"[bold]fix:[/] {escape(harmless(fix))}")
