"""The root command `holdfast`: global options, the list of commands, and exit codes.

Exit codes: 0 success, 1 a check or a job failed, 2 invalid usage, 3 not found, 4 conflict, 5 refused,
6 the database is not available, 130 interrupted.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import fields

import click

from holdfast.cli.commands import COMMANDS_BY_HEADING, COMMANDS_BY_NAME
from holdfast.cli.output import print_error
from holdfast.cli.session import CliSession
from holdfast.errors import HoldfastError
from holdfast.extras import build_missing_extra_error
from holdfast.settings import Settings
from holdfast.version import __version__

SETTING_OPTION_ALIASES = {"database_url": ("--dsn",)}


class SettingOption(click.Option):
    """A global command-line option that overrides a setting."""


class LazyCommandGroup(click.Group):
    """A click group that imports the module of a command only when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*COMMANDS_BY_NAME, *self.commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands and cmd_name in COMMANDS_BY_NAME:
            entry = COMMANDS_BY_NAME[cmd_name]
            modules = [importlib.import_module(f"holdfast.{module}") for module in entry.modules]
            command: click.Command = getattr(modules[0], f"{cmd_name}_command")
            command.short_help = entry.short_help
            self.add_command(command)
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command to run. A name that does not exist is an error with a suggestion."""
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-") and not ctx.resilient_parsing:
            similar = difflib.get_close_matches(args[0], names, n=1)
            suggestion = f" Did you mean {similar[0]!r}?" if similar else ""
            raise click.UsageError(f"Command {args[0]!r} does not exist.{suggestion}", ctx)
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help text: commands, then options. `holdfast settings` describes the settings."""
        self.format_commands(ctx, formatter)
        options = [each for each in self.get_params(ctx) if not isinstance(each, SettingOption)]
        rows = [row for option in options if (row := option.get_help_record(ctx)) is not None]
        with formatter.section("Options"):
            formatter.write_dl([*rows, ("--SETTING VALUE", "Override a setting; see `holdfast settings`.")])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, entries in COMMANDS_BY_HEADING.items():
            with formatter.section(heading):
                formatter.write_dl([(entry.name, entry.short_help) for entry in entries])


def add_settings_options(command: click.Command) -> None:
    """Add a command-line option for every setting, such as --database-url for `database_url`."""
    for setting in fields(Settings):
        names = [f"--{setting.name.replace('_', '-')}", *SETTING_OPTION_ALIASES.get(setting.name, ())]
        command.params.append(SettingOption(names, metavar="VALUE", help=setting.metadata["help"]))


@click.group(
    "holdfast",
    cls=LazyCommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(
    __version__, prog_name="holdfast", message="%(prog)s %(version)s", help="Print the version and exit."
)
@click.pass_context
def root_command(context: click.Context, /, **overrides: str | None) -> None:
    """Run background jobs for Python applications on PostgreSQL.

    Run `holdfast COMMAND --help` for the options of a command, and `holdfast settings` for all settings.
    Write settings before the command: `holdfast --database-url URL worker app.py`.
    """
    # Make the current folder importable, as `python` does: `holdfast worker app` must find app.py.
    sys.path.insert(0, os.getcwd())  # noqa: PTH109
    context.obj = CliSession({name: value for name, value in overrides.items() if value})


add_settings_options(root_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line of this process and exit with its exit code."""
    sys.exit(run_command_line(list(sys.argv[1:] if arguments is None else arguments)))


def run_command_line(arguments: list[str]) -> int:
    """Run a command line and return its exit code. Errors are printed as messages, without tracebacks."""
    as_json = "--json" in arguments
    try:
        result = root_command.main(arguments, prog_name="holdfast", standalone_mode=False)
    except HoldfastError as error:
        print_error(error.message, error.fix, as_json=as_json)
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:  # a group without a subcommand: print its help
        click.echo(error.format_message(), err=True)
        return 2
    except click.ClickException as error:
        path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "holdfast"
        print_error(error.format_message(), f"See {path} --help.", as_json=as_json)
        return 2
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ImportError as error:
        missing = build_missing_extra_error(error, "This command")
        if missing is None:
            raise
        print_error(missing.message, missing.fix, as_json=as_json)
        return missing.exit_code
    except OSError as error:  # the operating system refused: disk full, no permission, no such file
        print_error(f"{error.strerror or error}: {error.filename or 'this machine'}.", None, as_json=as_json)
        return 1
    return result if isinstance(result, int) else 0
