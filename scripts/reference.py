"""Generate the pages of docs/reference from the code. With `--check`, only report pages that are out of date."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import click

import reference_access
import reference_http
import reference_metrics
import reference_modules
import reference_python
import reference_sql
from holdfast import errors, telemetry
from holdfast.cli.root import root_command
from holdfast.settings import ENVIRONMENT_PREFIX, SETTING_CHOICES, Settings

REFERENCE_DIR = Path(__file__).resolve().parent.parent / "docs" / "reference"
GENERATED_NOTE = "<!-- Written by scripts/reference.py; run `make reference` after a change. -->\n"


def build_settings_page() -> str:
    lines = [
        "# Settings",
        GENERATED_NOTE,
        "One name everywhere: the field, the environment variable with the prefix, the key under `[tool.holdfast]` in",
        "pyproject.toml. What is nearer wins: command line, environment, pyproject, default. `DATABASE_URL` is honoured too;",
        "`HOLDFAST_DATABASE_URL` wins over it. Durations are a number and a unit: `250ms`, `90s`, `5m`, `1.5h`, `7d`.",
        "",
        "| setting | environment | type | default | meaning |",
        "|---|---|---|---|---|",
    ]
    for field in dataclasses.fields(Settings):
        type_name = str(field.type).removesuffix(" | None")
        type_name = (
            ", ".join(f"`{choice}`" for choice in SETTING_CHOICES[type_name])
            if type_name in SETTING_CHOICES
            else type_name
        )
        lines.append(
            f"| `{field.name}` | `{ENVIRONMENT_PREFIX}{field.name.upper()}` | {type_name} | {_format_default(field.default)}"
            f" | {field.metadata['help']} |"
        )
    return "\n".join(lines) + "\n"


def _format_default(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, timedelta):
        return f"`{_format_duration(value.total_seconds())}`"
    return f"`{value}`"


def _format_duration(seconds: float) -> str:
    """Return a duration as settings accept it, in the largest unit that needs no fraction."""
    units = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
    unit = next((name for name, size in units.items() if seconds >= size and seconds % size == 0), None)
    return f"{seconds * 1000:g}ms" if unit is None else f"{seconds / units[unit]:g}{unit}"


def build_events_page() -> str:
    lines = [
        "# Events",
        GENERATED_NOTE,
        "`holdfast.telemetry.subscribe(f)` calls `f(name, fields)` for each. Logs are one subscriber.",
        "",
        "| event | when, and its fields |",
        "|---|---|",
        *(f"| `{name}` | {text} |" for name, text in telemetry.EVENT_DESCRIPTIONS.items()),
    ]
    return "\n".join(lines) + "\n"


def build_errors_page() -> str:
    error_classes = [
        k for _, k in inspect.getmembers(errors, inspect.isclass) if issubclass(k, errors.HoldfastError)
    ]
    lines = [
        "# Errors",
        GENERATED_NOTE,
        "```text",
        *_read_error_tree(),
        "```",
        "",
        "| error | SQLSTATE | exit code |",
        "|---|---|---|",
    ]
    lines += [
        f"| `{error_class.__name__}` | {error_class.sqlstate or '-'} | {error_class.exit_code} |"
        for error_class in error_classes
    ]
    lines += [
        "",
        "Exit codes of the command line: 0 done, 1 a problem was found, 2 wrong usage, 3 not found, 4 conflict,",
    ]
    lines += ["5 refused, 6 the database is away, 130 interrupted."]
    return "\n".join(lines) + "\n"


def _read_error_tree() -> list[str]:
    return [line[4:] for line in (errors.__doc__ or "").splitlines() if line.startswith("    ")]


def build_cli_page() -> str:
    lines = ["# Command line", GENERATED_NOTE]
    for path, command in iterate_commands(root_command, "holdfast"):
        context = click.Context(command, info_name=path)
        lines += [f"## {path}", "", "```text", command.get_help(context), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def iterate_commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            subcommand = command.get_command(context, name)
            if subcommand is not None:
                yield from iterate_commands(subcommand, f"{path} {name}")


def build_python_page() -> str:
    return reference_python.build_page().replace("{note}", GENERATED_NOTE, 1)


def build_modules_page() -> str:
    return reference_modules.build_page().replace("{note}", GENERATED_NOTE, 1)


def build_metrics_page() -> str:
    return reference_metrics.build_page().replace("{note}", GENERATED_NOTE, 1)


def build_http_page() -> str:
    return reference_http.build_page().replace("{note}", GENERATED_NOTE, 1)


def build_sql_functions_page() -> str:
    return reference_sql.build_sql_functions_page(GENERATED_NOTE)


def build_access_page() -> str:
    return reference_access.build_access_page(GENERATED_NOTE)


PAGE_BUILDERS = {
    "settings.md": build_settings_page,
    "events.md": build_events_page,
    "errors.md": build_errors_page,
    "cli.md": build_cli_page,
    "python.md": build_python_page,
    "python-modules.md": build_modules_page,
    "metrics.md": build_metrics_page,
    "http.md": build_http_page,
    "sql-functions.md": build_sql_functions_page,
    "access.md": build_access_page,
}


def main() -> int:
    check = "--check" in sys.argv
    exit_code = 0
    for name, build_page in PAGE_BUILDERS.items():
        path, text = REFERENCE_DIR / name, build_page()
        if check and (not path.exists() or path.read_text(encoding="utf-8") != text):
            print(f"docs/reference/{name} is out of date; run `make reference`")
            exit_code = 1
        elif not check:
            path.write_text(text, encoding="utf-8")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
