"""`holdfast version`: print the versions of Holdfast and Python."""

from __future__ import annotations

import platform

import click

from holdfast.cli.session import CliSession, json_option, pass_session
from holdfast.version import __version__


@click.command("version")
@json_option
@pass_session
def version_command(session: CliSession) -> None:
    """Print the versions of Holdfast and Python."""
    if session.output.json:
        session.output.print_record({"holdfast": __version__, "python": platform.python_version()})
    else:
        session.output.print_value("holdfast", f"holdfast {__version__} (Python {platform.python_version()})")
