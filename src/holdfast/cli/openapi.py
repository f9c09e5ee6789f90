"""`holdfast openapi`: print the OpenAPI description of the HTTP API."""

from __future__ import annotations

import click

from holdfast.cli.schema import format_json
from holdfast.extras import require_extra


@click.command("openapi")
def openapi_command() -> None:
    """Print the OpenAPI description of the HTTP API as JSON.

    This command needs no database. It needs the extra `server`.
    """
    with require_extra("holdfast openapi"):
        from holdfast.server.api.app import build_openapi_document  # noqa: PLC0415
    click.echo(format_json(build_openapi_document()))
