"""The `holdfast` command: the one place that builds concrete things out of settings."""

from holdfast.cli.root import main

__all__ = ["main"]
