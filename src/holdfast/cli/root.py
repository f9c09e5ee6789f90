"""The root command: global options, exit codes, and the list of nouns.

Exit codes: 0 done, 1 a problem was found, 2 wrong usage, 3 not found, 4 conflict, 5 refused,
6 the database is away, 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import fields

import click

from holdfast.cli.output import complain
from holdfast.cli.session import Session
from holdfast.errors import HoldfastError
from holdfast.settings import Settings
from holdfast.version import __version__

ALIASES = {"database_url": ("--dsn",)}

# Every command by the heading it has in the help, with the modules of this package that make it; the first
# has it under its own name. They are imported when asked for: a key press in a shell must be quick.
COMMANDS: dict[str, dict[str, tuple[str, ...]]] = {
    "Start": {"dev": ("devtools.dev",), "init": ("devtools.init",), "demo": ("devtools.demo",)},
    "Run": {
        "worker": ("cli.worker",),
        "api": ("cli.api",),
        "migrate": ("cli.migrate",),
        "doctor": ("cli.doctor",),
        "db": ("cli.db",),
        "key": ("cli.key",),
        "bench": ("devtools.bench",),
    },
    "Work": {
        "submit": ("cli.submit",),
        "job": ("cli.job", "cli.job_find", "cli.job_act"),
        "batch": ("cli.batch", "cli.batch_zip"),
        "cron": ("cli.cron",),
        "file": ("cli.file",),
        "msg": ("cli.msg",),
    },
    "Operate": {
        "top": ("cli.top",),
        "queue": ("cli.queue", "cli.queue_act"),
        "errors": ("cli.errors",),
        "bulk": ("cli.bulk",),
        "workers": ("cli.workers",),
        "limit": ("cli.limit",),
        "webhook": ("cli.webhook",),
    },
    "Tell": {
        "mcp": ("cli.mcp",),
        "openapi": ("cli.about",),
        "schema": ("cli.about",),
        "completion": ("cli.completion",),
        "version": ("cli.about",),
    },
}
PLACES = {name: modules for heading in COMMANDS.values() for name, modules in heading.items()}


class Root(click.Group):
    """Knows its commands by name, and imports one when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*PLACES, *self.commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands and cmd_name in PLACES:
            modules = [importlib.import_module(f"holdfast.{module}") for module in PLACES[cmd_name]]
            self.add_command(getattr(modules[0], cmd_name))
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = formatter.width - 6 - max(len(name) for name in self.list_commands(ctx))
        for heading, names in COMMANDS.items():
            with formatter.section(heading):
                known = [(name, self.get_command(ctx, name)) for name in names]
                formatter.write_dl([(name, c.get_short_help_str(width)) for name, c in known if c])


def settings_options(command: click.Command) -> click.Command:
    """Every setting as a global option of the same name, so that there is one vocabulary."""
    for setting in fields(Settings):
        names = [f"--{setting.name.replace('_', '-')}", *ALIASES.get(setting.name, ())]
        command.params.append(click.Option(names, metavar="VALUE", help=setting.metadata["help"]))
    return command


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="holdfast", message="%(prog)s %(version)s")
@click.pass_context
def root(context: click.Context, /, **overrides: str | None) -> None:
    """Background work for Python applications on PostgreSQL.

    Options before the command are settings; the environment (HOLDFAST_...) and [tool.holdfast] in
    pyproject.toml know them by the same names.
    """
    # The current folder is importable, as with `python`: `holdfast worker app` must find app.py.
    sys.path.insert(0, os.getcwd())  # noqa: PTH109
    context.obj = Session({name: value for name, value in overrides.items() if value})


settings_options(root)


def main(arguments: Sequence[str] | None = None) -> None:
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def run(arguments: list[str]) -> int:
    """Run one command line and answer with its exit code; every error becomes a sentence."""
    as_json = "--json" in arguments
    try:
        result = root.main(arguments, prog_name="holdfast", standalone_mode=False)
    except HoldfastError as problem:
        complain(problem.message, problem.fix, as_json=as_json)
        return problem.exit_code
    except click.exceptions.NoArgsIsHelpError as problem:  # a noun without a verb: what it can do
        click.echo(problem.format_message(), err=True)
        return 2
    except click.ClickException as problem:
        hint = (
            problem.ctx.command_path if isinstance(problem, click.UsageError) and problem.ctx else "holdfast"
        )
        complain(problem.format_message(), f"See {hint} --help.", as_json=as_json)
        return 2
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as problem:  # the machine refused: no space, no right, no such place
        complain(
            f"{problem.strerror or problem}: {problem.filename or 'this machine'}.", None, as_json=as_json
        )
        return 1
    return result if isinstance(result, int) else 0
