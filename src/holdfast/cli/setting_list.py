"""`holdfast settings`: list all settings, their values and what they mean."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import click

from holdfast.cli.session import CliSession, json_option, pass_session
from holdfast.errors import NotFoundError
from holdfast.settings import ENVIRONMENT_PREFIX, Settings


@click.command("settings")
@click.argument("text", required=False)
@click.option("--changed", is_flag=True, help="List only settings that differ from their default.")
@json_option
@pass_session
def settings_command(session: CliSession, text: str | None, changed: bool) -> None:
    """List all settings with their values. TEXT selects those whose name or meaning contains it.

    Set one before the command (holdfast --pool-size 4 worker app.py), in the environment
    (HOLDFAST_POOL_SIZE=4) or in [tool.holdfast] of pyproject.toml. Secrets are not shown.
    """
    rows: list[dict[str, Any]] = [
        {
            "setting": setting.name,
            "value": None if value is None else str(value),
            "changed": value != setting.default,
            "environment": f"{ENVIRONMENT_PREFIX}{setting.name.upper()}",
            "help": setting.metadata["help"],
        }
        for setting in fields(Settings)
        for value in [getattr(session.settings, setting.name)]
    ]
    name_part = (text or "").lower().replace("-", "_")
    rows = [
        row
        for row in rows
        if (row["changed"] or not changed)
        and (name_part in row["setting"] or (text or "").lower() in row["help"].lower())
    ]
    if text and not rows:
        raise NotFoundError(f"No setting matches {text!r}.", fix="List all: holdfast settings")
    session.output.print_rows(rows, ["setting", "value", "help"])
