"""Every system of the package, found by its folder, so that tests cover a new system without a change."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from holdfast import systems
from holdfast.engine.connection import Connection

SYSTEMS_SCHEMA = "apps"


def list_systems() -> list[Any]:
    """List the packages of `holdfast.systems` that have tables of their own."""
    packages = [
        importlib.import_module(f"{systems.__name__}.{module.name}")
        for module in pkgutil.iter_modules(systems.__path__)
        if module.ispkg
    ]
    return [package for package in packages if hasattr(package, "install")]


async def install_all_systems(conn: Connection, schema: str = SYSTEMS_SCHEMA) -> None:
    """Install every system in a schema of its own, twice: the second run must change nothing."""
    for system in list_systems():
        for _ in range(2):
            await system.install(conn, schema)
