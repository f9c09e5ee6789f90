"""The systems import public names only, because users build their own systems in the same way."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast.systems

SYSTEMS_FOLDER = Path(holdfast.systems.__file__).parent
PUBLIC_MODULES = (
    "holdfast",
    "holdfast.errors",
    "holdfast.server",
    "holdfast.telemetry",
    "holdfast.egress",
    "holdfast.systems",
)


def find_private_imports(source: str) -> Iterator[str]:
    """Yield the imports of Holdfast that are neither public names nor other modules of the systems."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                package = alias.name.split(".")[0]
                if package == "holdfast" and not is_systems_module(alias.name):
                    yield f"line {node.lineno}: import {alias.name}"
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level or module.split(".")[0] != "holdfast":
                continue
            for alias in node.names:
                if not is_public(module, alias.name):
                    yield f"line {node.lineno}: from {module} import {alias.name}"


def is_systems_module(module: str) -> bool:
    return module.startswith("holdfast.systems.")


def is_public(module: str, name: str) -> bool:
    if name.startswith("_"):
        return False
    if is_systems_module(module):
        return True
    if module not in PUBLIC_MODULES:
        return False
    public_names = importlib.import_module(module).__all__
    return name in public_names or is_systems_module(f"{module}.{name}")


@pytest.mark.parametrize(
    "path", sorted(SYSTEMS_FOLDER.rglob("*.py")), ids=lambda path: str(path.relative_to(SYSTEMS_FOLDER))
)
def test_systems_import_public_names_only(path: Path) -> None:
    assert list(find_private_imports(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from holdfast import Client, task", []),
        ("from holdfast.systems.printing import PdfRenderer", []),
        ("from holdfast.systems import exports", []),
        ("import asyncio, starlette", []),
        ("from holdfast.server import create_app", []),
        ("from holdfast.model import Artifact", ["line 1: from holdfast.model import Artifact"]),
        ("from holdfast.server.api import jobs", ["line 1: from holdfast.server.api import jobs"]),
        ("import holdfast.engine", ["line 1: import holdfast.engine"]),
        ("from holdfast import client", ["line 1: from holdfast import client"]),
        ("from holdfast import errors", ["line 1: from holdfast import errors"]),
        (
            "from holdfast.systems.tables import _SCHEMA_NAME",
            ["line 1: from holdfast.systems.tables import _SCHEMA_NAME"],
        ),
        ("def f():\n    from holdfast import _x", ["line 2: from holdfast import _x"]),
    ],
)
def test_the_check_finds_private_imports(source: str, expected: list[str]) -> None:
    assert list(find_private_imports(source)) == expected
