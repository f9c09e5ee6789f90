"""Write docs/reference/{settings,events,errors,cli,python,http}.md from the code. `--check` only says whether they are fresh."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import click

import reference_http
import reference_python
from holdfast import errors, telemetry
from holdfast.cli.root import root_command
from holdfast.settings import ENVIRONMENT_PREFIX, SETTING_CHOICES, Settings

PLACE = Path(__file__).resolve().parent.parent / "docs" / "reference"
NOTE = "<!-- Written by scripts/reference.py; run `make reference` after a change. -->\n"


def settings() -> str:
    lines = [
        "# Settings",
        NOTE,
        "One name everywhere: the field, the environment variable with the prefix, the key under `[tool.holdfast]` in",
        "pyproject.toml. What is nearer wins: command line, environment, pyproject, default. `DATABASE_URL` is honoured too;",
        "`HOLDFAST_DATABASE_URL` wins over it. Durations are a number and a unit: `250ms`, `90s`, `5m`, `1.5h`, `7d`.",
        "",
        "| setting | environment | type | default | meaning |",
        "|---|---|---|---|---|",
    ]
    for field in dataclasses.fields(Settings):
        kind = str(field.type).removesuffix(" | None")
        kind = (
            ", ".join(f"`{choice}`" for choice in SETTING_CHOICES[kind]) if kind in SETTING_CHOICES else kind
        )
        lines.append(
            f"| `{field.name}` | `{ENVIRONMENT_PREFIX}{field.name.upper()}` | {kind} | {_default(field.default)}"
            f" | {field.metadata['help']} |"
        )
    return "\n".join(lines) + "\n"


def _default(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, timedelta):
        return f"`{value.total_seconds():g}s`"
    return f"`{value}`"


def events() -> str:
    lines = [
        "# Events",
        NOTE,
        "`holdfast.telemetry.subscribe(f)` calls `f(name, fields)` for each. Logs are one subscriber.",
        "",
        "| event | when, and its fields |",
        "|---|---|",
        *(f"| `{name}` | {text} |" for name, text in telemetry.EVENT_DESCRIPTIONS.items()),
    ]
    return "\n".join(lines) + "\n"


def error_table() -> str:
    kinds = [k for _, k in inspect.getmembers(errors, inspect.isclass) if issubclass(k, errors.HoldfastError)]
    lines = [
        "# Errors",
        NOTE,
        "```text",
        *_drawing(),
        "```",
        "",
        "| error | SQLSTATE | exit code |",
        "|---|---|---|",
    ]
    lines += [f"| `{kind.__name__}` | {kind.sqlstate or '-'} | {kind.exit_code} |" for kind in kinds]
    lines += [
        "",
        "Exit codes of the command line: 0 done, 1 a problem was found, 2 wrong usage, 3 not found, 4 conflict,",
    ]
    lines += ["5 refused, 6 the database is away, 130 interrupted."]
    return "\n".join(lines) + "\n"


def _drawing() -> list[str]:
    return [line[4:] for line in (errors.__doc__ or "").splitlines() if line.startswith("    ")]


def cli() -> str:
    lines = ["# Command line", NOTE]
    for path, command in commands(root_command, "holdfast"):
        context = click.Context(command, info_name=path)
        lines += [f"## {path}", "", "```text", command.get_help(context), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                yield from commands(below, f"{path} {name}")


def python() -> str:
    return reference_python.page().replace("{note}", NOTE, 1)


def http() -> str:
    return reference_http.page().replace("{note}", NOTE, 1)


PAGES = {
    "settings.md": settings,
    "events.md": events,
    "errors.md": error_table,
    "cli.md": cli,
    "python.md": python,
    "http.md": http,
}


def main() -> int:
    check = "--check" in sys.argv
    stale = 0
    for name, page in PAGES.items():
        path, text = PLACE / name, page()
        if check and (not path.exists() or path.read_text(encoding="utf-8") != text):
            print(f"docs/reference/{name} is stale; run `make reference`")
            stale = 1
        elif not check:
            path.write_text(text, encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main())
