"""The session of a command: its settings, its output, and ways to run asynchronous code.

This module also defines the options that many commands share.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import click

from holdfast import settings as settings_module
from holdfast.cli.output import CliOutput
from holdfast.client import Client
from holdfast.engine.connection import Connection
from holdfast.errors import RefusedError
from holdfast.settings import ENVIRONMENT_PREFIX, Secret, Settings

T = TypeVar("T")


@dataclass
class CliSession:
    """One run of a `holdfast` command. `overrides` are the settings given as command-line options."""

    overrides: dict[str, object] = field(default_factory=dict[str, object])

    @cached_property
    def settings(self) -> Settings:
        return settings_module.load_settings(self.overrides)

    @cached_property
    def output(self) -> CliOutput:
        return CliOutput()

    def run_async(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in a new event loop and return its result."""
        return asyncio.run(coroutine)

    def run_server(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a long-running coroutine, on uvloop if the extra `fast` is installed."""
        try:
            import uvloop  # noqa: PLC0415
        except ImportError:
            return self.run_async(coroutine)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(coroutine)

    def run_with_connection(self, operation: Callable[[Connection], Awaitable[T]]) -> T:
        """Open a database connection, call `operation` with it, close it, and return the result."""

        async def connect_and_run() -> T:
            async with self.client() as client, client.connection() as connection:
                return await operation(connection)

        return self.run_async(connect_and_run())

    def client(self) -> Client:
        return Client(settings=self.settings)

    def settings_as_environment(self) -> dict[str, str]:
        """Return the settings given as options, as environment variables for child processes.

        Environment variables, unlike arguments, do not show secrets in the output of `ps`.
        """
        return {
            f"{ENVIRONMENT_PREFIX}{name.upper()}": value.reveal() if isinstance(value, Secret) else str(value)
            for name, value in self.overrides.items()
            if value is not None
        }

    def confirm(self, consequence: str, *, yes: bool, dry_run: bool) -> bool:
        """Ask the user to confirm an action, and return whether to continue.

        Ask on a terminal, unless `yes` is set. Without a terminal and without `yes`, refuse. With `dry_run`,
        print the consequence and return False.
        """
        if dry_run:
            self.output.print_line(f"Dry run: {consequence} Nothing was changed.")
            return False
        if yes:
            return True
        if not self.output.is_interactive:
            raise RefusedError(
                f"{consequence} This action needs confirmation.", fix="Run it again with --yes."
            )
        if not click.confirm(f"{consequence} Continue?", default=False):
            raise RefusedError("Cancelled. Nothing was changed.")
        return True


pass_session = click.make_pass_decorator(CliSession, ensure=True)
Command = TypeVar("Command", bound=Callable[..., Any])


def json_option(command: Command) -> Command:
    """Add the option `--json`: print JSON objects with stable field names instead of text."""

    def enable_json_output(context: click.Context, _: click.Parameter, value: bool) -> bool:
        if value:
            context.ensure_object(CliSession).output.json = True
        return value

    return click.option(
        "--json",
        is_flag=True,
        expose_value=False,
        callback=enable_json_output,
        help="Print the result as JSON, one object per line. Default: text for people.",
    )(command)


def exit_with_parent_option(command: Command) -> Command:
    """Add the hidden option `--exit-with-parent`: stop as on SIGTERM when standard input closes.

    The parent process holds the other end of the pipe. The kernel closes it however the parent ends.
    """

    def start_parent_watch(_: click.Context, __: click.Parameter, value: bool) -> None:
        if value:
            threading.Thread(target=_terminate_at_end_of_input, daemon=True).start()

    return click.option(
        "--exit-with-parent", is_flag=True, hidden=True, expose_value=False, callback=start_parent_watch
    )(command)


def _terminate_at_end_of_input() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def confirmation_options(command: Command) -> Command:
    """Add the options `--yes` and `--dry-run` to a command that needs confirmation."""
    command = click.option(
        "--yes", "-y", is_flag=True, help="Skip the confirmation prompt. Default: ask before the change."
    )(command)
    return click.option(
        "--dry-run", is_flag=True, help="Print what the command would change, without changing it."
    )(command)
