"""Refuse the bundled applications (systems) with several shards: their tables are in one database."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast.errors import RefusedError

SYSTEMS_PREFIX: Final = "holdfast.systems."


def refuse_systems_on_shards(functions: Iterable[object]) -> None:
    """Raise RefusedError if a function belongs to a bundled application (system)."""
    for function in functions:
        module = str(getattr(function, "__module__", ""))
        if module.startswith(SYSTEMS_PREFIX):
            name = module.removeprefix(SYSTEMS_PREFIX).partition(".")[0]
            raise RefusedError(
                f"The bundled application {name} needs one database, and the setting shards has several.",
                fix="Run its API and its workers on one shard: holdfast --shard 1, or HOLDFAST_SHARD=1.",
                field="shards",
            )
