"""Text with colours for a terminal. Workers do not import it: rich holds two megabytes."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table


def create_console(*, stderr: bool = False) -> Console:
    """Return standard output, or standard error, as a terminal."""
    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def print_table(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print cells of plain text below their columns."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for cells in rows:
        table.add_row(*map(escape, cells))
    console.print(table)


def print_error_text(message: str, fix: str | None) -> None:
    """Print an error message and its fix to standard error."""
    console = create_console(stderr=True)
    console.print(f"[bold red]error:[/] {escape(message)}")
    if fix:
        console.print(f"[bold]fix:[/] {escape(fix)}")
