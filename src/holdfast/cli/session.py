"""The session of a command: its settings, its output, and ways to run asynchronous code.

This module also defines the options that many commands share.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar, cast
from uuid import UUID

import click

from holdfast import settings as settings_module
from holdfast.cli.output import CliOutput, print_error
from holdfast.client import Client
from holdfast.definitions.ids import shard_of
from holdfast.engine.connection import Connection
from holdfast.errors import DatabaseError, NotFoundError, RefusedError
from holdfast.setting_values import parse_shards
from holdfast.settings import ENVIRONMENT_PREFIX, Secret, Settings

T = TypeVar("T")


@dataclass
class CliSession:
    """One run of a `holdfast` command. `overrides` are the settings given as command-line options."""

    overrides: dict[str, object] = field(default_factory=dict[str, object])

    @cached_property
    def settings(self) -> Settings:
        return settings_module.load_settings(self.overrides)

    @property
    def has_selected_shard(self) -> bool:
        """Whether an option or the environment selects one of several shards."""
        return self.settings.shard is not None

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
        """Return a client of the database, of all shards, or of the shard of the ids in the command."""
        number = self.find_named_shard()
        return Client(settings=self.settings if number is None else self.select_shard(number).settings)

    def select_shard(self, number: int) -> CliSession:
        """Return a session of one shard, with the same output."""
        selected = CliSession({**self.overrides, "shard": str(number)})
        selected.output = self.output
        return selected

    def list_shard_numbers(self) -> list[int]:
        """Return the numbers of the shards, or an empty list if the command uses one database."""
        return [] if self.settings.shards is None else list(parse_shards(self.settings.shards.reveal()))

    def find_named_shard(self) -> int | None:
        """Return the shard of the ids among the arguments of the command, or None if there are none."""
        context = click.get_current_context(silent=True)
        known = self.list_shard_numbers()
        if not known or context is None:
            return None
        numbers = {shard_of(each) for value in context.params.values() for each in _list_ids(value)}
        if len(numbers) > 1:
            names = ", ".join(map(str, sorted(numbers)))
            raise RefusedError(
                f"The ids belong to several shards: {names}.", fix="Run the command once for each shard."
            )
        number = next(iter(numbers), None)
        if number is not None and number not in known:
            raise NotFoundError(
                f"The id belongs to shard {number}, which is not in the setting shards.", field="id"
            )
        return number

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
            text = f"Dry run: {consequence} Nothing was changed."
            self.output.print_change(text, dry_run=True, consequence=consequence)
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


def _list_ids(value: object) -> list[UUID]:
    """Return the ids in the value of an argument or option."""
    texts = cast("Sequence[object]", value) if isinstance(value, (list, tuple)) else [value]
    ids: list[UUID] = []
    for text in texts:
        with contextlib.suppress(ValueError):
            ids.append(text if isinstance(text, UUID) else UUID(str(text)))
    return ids


pass_session = click.make_pass_decorator(CliSession, ensure=True)
Command = TypeVar("Command", bound=Callable[..., Any])


def run_on_each_shard(function: Command) -> Command:
    """Run a command once for each shard, unless its ids or the option `--shard` name one.

    Rows get the column `shard`, and sentences begin with it. A shard that does not answer is reported, and
    the others go on. What is missing on some shards is no error, as long as one shard has it.
    """

    @functools.wraps(function)
    def run(session: CliSession, /, *args: Any, **kwargs: Any) -> Any:
        numbers = session.list_shard_numbers()
        if not numbers or session.find_named_shard() is not None:
            return function(session, *args, **kwargs)
        exit_code, not_found = 0, list[NotFoundError]()
        for number in numbers:
            session.output.shard = number
            try:
                exit_code = function(session.select_shard(number), *args, **kwargs) or exit_code
            except DatabaseError as error:
                print_error(f"Shard {number}: {error.message}", error.fix, as_json=session.output.json)
                exit_code = error.exit_code
            except NotFoundError as error:
                not_found.append(error)
        session.output.shard = None
        if len(not_found) == len(numbers):
            raise not_found[0]
        return exit_code

    return cast("Command", run)


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


def row_limit_option(command: Command) -> Command:
    """Add the option `-n`: print at most this many rows of a list."""

    def set_row_limit(context: click.Context, _: click.Parameter, value: int | None) -> None:
        context.ensure_object(CliSession).output.max_rows = value

    return click.option(
        "--limit",
        "-n",
        type=click.IntRange(1),
        expose_value=False,
        callback=set_row_limit,
        help="Print at most this many rows. Default: all.",
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
