"""The `holdfast` command."""

from holdfast.cli.root import main

__all__ = ["main"]
