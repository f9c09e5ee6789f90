"""`holdfast completion SHELL`: print the script that adds completion of `holdfast` to a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print the completion script for SHELL.

    For bash, add this line to ~/.bashrc: eval "$(holdfast completion bash)"
    """
    completion_class = get_completion_class(shell)
    assert completion_class is not None  # noqa: S101  (click.Choice only accepts shells that click supports)
    script = completion_class(context.find_root().command, {}, "holdfast", "_HOLDFAST_COMPLETE")
    click.echo(script.source())
