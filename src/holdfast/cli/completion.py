"""`holdfast completion bash|zsh|fish`: prints the script that teaches a shell our commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    For bash: eval "$(holdfast completion bash)"
    """
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101  (Choice lets through only shells that click knows)
    click.echo(kind(context.find_root().command, {}, "holdfast", "_HOLDFAST_COMPLETE").source())
