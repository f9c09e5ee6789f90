"""What every command is handed: settings, the output, and a way to run async code."""

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
from holdfast.cli.output import Output
from holdfast.client import Client
from holdfast.engine.connection import Connection
from holdfast.errors import RefusedError
from holdfast.settings import PREFIX, Secret, Settings

T = TypeVar("T")


@dataclass
class Session:
    overrides: dict[str, object] = field(default_factory=dict[str, object])

    @cached_property
    def settings(self) -> Settings:
        return settings_module.load(self.overrides)

    @cached_property
    def out(self) -> Output:
        return Output()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(work)

    def as_environment(self) -> dict[str, str]:
        """The settings of this command line, for processes of ours; `ps` shows no secret that way."""
        return {
            f"{PREFIX}{name.upper()}": value.reveal() if isinstance(value, Secret) else str(value)
            for name, value in self.overrides.items()
            if value is not None
        }

    def ask(self, question: Callable[[Connection], Awaitable[T]]) -> T:
        """Run something that needs one connection, and close it again."""

        async def work() -> T:
            async with self.client() as client, (await client.open()).connection() as connection:
                return await question(connection)

        return self.run(work())

    def client(self) -> Client:
        return Client(settings=self.settings)

    def serve(self, work: Coroutine[Any, Any, T]) -> T:
        """The same for what runs for long: on the faster loop, where the extra `fast` is installed."""
        try:
            import uvloop  # noqa: PLC0415
        except ImportError:
            return self.run(work)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)

    def confirm(self, consequence: str, *, yes: bool, dry_run: bool) -> bool:
        """Whether to go on with something that cannot be undone. Says what it would do either way."""
        if dry_run:
            self.out.line(f"Would: {consequence} Nothing was changed (--dry-run).")
            return False
        if yes:
            return True
        if not self.out.terminal:
            raise RefusedError(f"{consequence} Not done without being asked twice.", fix="Add --yes.")
        if not click.confirm(f"{consequence} Go on?", default=False):
            raise RefusedError("Nothing was changed.")
        return True


pass_session = click.make_pass_decorator(Session, ensure=True)
Command = TypeVar("Command", bound=Callable[..., Any])


def json_option(command: Command) -> Command:
    """`--json` on every reader: one object a line, stable names, no colours."""

    def use_json(context: click.Context, _: click.Parameter, value: bool) -> bool:
        if value:
            context.ensure_object(Session).out.json = True
        return value

    return click.option(
        "--json", is_flag=True, expose_value=False, callback=use_json, help="One JSON object a line."
    )(command)


def attached_option(command: Command) -> Command:
    """Hidden `--attached`: stop, as on SIGTERM, when standard input closes because the parent is gone."""

    def watch(_: click.Context, __: click.Parameter, value: bool) -> None:
        if value:
            threading.Thread(target=_stop_at_end_of_input, daemon=True).start()

    return click.option("--attached", is_flag=True, hidden=True, expose_value=False, callback=watch)(command)


def _stop_at_end_of_input() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def destructive(command: Command) -> Command:
    """`--yes` and `--dry-run` on every verb that destroys something."""
    command = click.option("--yes", "-y", is_flag=True, help="Do not ask.")(command)
    return click.option("--dry-run", is_flag=True, help="Say what would happen and do nothing.")(command)
