"""The `holdfast` command."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line of this process and exit with its exit code."""
    # Child processes of workers import this package and need none of the commands.
    from holdfast.cli.root import main as run_root_command  # noqa: PLC0415

    run_root_command(arguments)
