"""Generate docs/reference/python-modules.md: the public names of modules that python.md does not list."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import reference_python

PAGE_INTRODUCTION = """\
The names for those who extend Holdfast: routes and systems of your own, telemetry, tests. The names of an application are in
[Python](python.md). Names on neither page may change in any release.
"""
MAX_VALUE_CHARS = 250
MODULES = {
    "holdfast": "Other names of the package",
    "holdfast.server": "Routes of your own (`holdfast.server`)",
    "holdfast.systems": "Systems (`holdfast.systems`)",
    "holdfast.telemetry": "Events (`holdfast.telemetry`)",
    "holdfast.testing": "Tests (`holdfast.testing`)",
    "holdfast.egress": "Errors of web requests (`holdfast.egress`)",
    "holdfast.errors": "Errors (`holdfast.errors`)",
}


def build_page() -> str:
    lines = ["# Python: modules for extensions", "{note}", PAGE_INTRODUCTION]
    listed = {name for names in reference_python.NAMES_BY_SECTION.values() for name in names}
    for module_name, heading in MODULES.items():
        module = importlib.import_module(module_name)
        lines += [f"## {heading}", ""]
        for name in sorted(set(module.__all__) - listed - {"__version__"}, key=str.lower):
            lines += [f"### {name}", "", *format_name(module, name)]
        listed |= set(module.__all__)
    return "\n".join(lines).rstrip() + "\n"


def format_name(module: ModuleType, name: str) -> Iterator[str]:
    value: Any = getattr(module, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        yield from reference_python.format_name(name, value)
    else:
        text = re.sub(r"\b(typing|collections\.abc|starlette\.\w+)\.", "", str(value))
        yield from (f"`{text}`" if len(text) <= MAX_VALUE_CHARS else f"A {type(value).__name__}.", "")
