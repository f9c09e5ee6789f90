"""Output of commands: tables for people, JSON objects for programs, colours on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from rich.console import Console

Row = Mapping[str, Any]


class CliOutput:
    """Prints the results of a command to standard output, as text or as JSON."""

    def __init__(self) -> None:
        self.json = False
        self.max_rows: int | None = None
        self.shard: int | None = None  # whose rows are printed, if a command runs for each shard

    @cached_property
    def console(self) -> Console:
        """Standard output as a terminal."""
        from holdfast.cli.terminal import create_console  # noqa: PLC0415  (holds memory, see there)

        return create_console()

    @property
    def is_interactive(self) -> bool:
        """Whether a person can be asked."""
        return self.console.is_terminal and sys.stdin.isatty()

    def print_line(self, text: str) -> None:
        """Print a line of text for people. With `--json`, print nothing."""
        if not self.json:
            prefix = "" if self.shard is None else f"Shard {self.shard}: "
            self.console.print(prefix + strip_control_characters(text), markup=False)

    def print_value(self, name: str, value: object) -> None:
        """Print one bare value. With `--json`, print an object with the value under `name`."""
        if self.json:
            self._write_object({name: value})
        else:
            sys.stdout.write(f"{value}\n")

    def print_change(self, text: str, /, **fields: object) -> None:
        """Print a sentence about what was changed. With `--json`, print an object with the fields."""
        if self.json:
            self._write_object(fields)
        else:
            self.print_line(text)

    def print_record(self, record: Row) -> None:
        """Print the fields of one record, one per line. With `--json`, print one object."""
        if self.json:
            self._write_object(record)
            return
        width = max((len(name) for name in record), default=0)
        for name, value in record.items():
            self.print_line(f"{name:<{width}}  {_format_cell(value)}")

    def print_rows(self, rows: Sequence[Row], columns: Sequence[str]) -> None:
        """Print rows as a table on a terminal, as JSON with `--json`, else as tab-separated lines."""
        rows = rows[: self.max_rows]
        if self.shard is not None:
            rows = [{"shard": self.shard, **row} for row in rows]
            columns = ["shard", *columns]
        if self.json:
            for row in rows:
                self._write_object(row)
        elif self.console.is_terminal:
            from holdfast.cli.terminal import print_table  # noqa: PLC0415

            cells = [[_format_cell(row.get(column)) for column in columns] for row in rows]
            print_table(self.console, columns, cells)
        else:
            for row in rows:
                sys.stdout.write("\t".join(_format_cell(row.get(column)) for column in columns) + "\n")

    def _write_object(self, record: Row) -> None:
        if self.shard is not None:
            record = {"shard": self.shard, **record}
        sys.stdout.write(msgspec.json.encode(dict(record), enc_hook=str).decode() + "\n")
        sys.stdout.flush()


def _format_cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (dict, list)):
        value = msgspec.json.encode(value, enc_hook=str).decode()
    return strip_control_characters(str(value), keep="")


def strip_control_characters(text: str, keep: str = "\n\t") -> str:
    """Replace control characters, which a terminal would interpret, with spaces.

    Names, errors and arguments of jobs are untrusted text.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() or c in keep else " " for c in text)


def print_error(message: str, fix: str | None, *, as_json: bool) -> None:
    """Print an error message and its fix to standard error, as text or as JSON."""
    if as_json:
        sys.stderr.write(msgspec.json.encode({"error": message, "fix": fix}).decode() + "\n")
        return
    from holdfast.cli.terminal import print_error_text  # noqa: PLC0415

    print_error_text(strip_control_characters(message), fix and strip_control_characters(fix))
