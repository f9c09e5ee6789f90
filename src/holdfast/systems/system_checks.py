"""Checks of `holdfast doctor` that several systems use, and what a check returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from holdfast import Client
from holdfast.errors import HoldfastError


@dataclass(frozen=True)
class SystemFinding:
    """The result of one check."""

    level: Literal["ok", "warn", "fail"]
    text: str
    fix: str | None = None


async def run_system_checks(
    client: Client, checks: Sequence[Callable[[Client], Awaitable[SystemFinding]]]
) -> list[SystemFinding]:
    """Run checks one after the other. An error of Holdfast is a finding, too."""
    return [await _run_check(check, client) for check in checks]


async def _run_check(check: Callable[[Client], Awaitable[SystemFinding]], client: Client) -> SystemFinding:
    try:
        return await check(client)
    except HoldfastError as error:
        return SystemFinding("fail", error.message, error.fix)


async def check_storage(client: Client) -> SystemFinding:
    """List the first page of the store for files. This changes nothing."""
    try:
        async for _ in client.files.store.list():
            break
    except (HoldfastError, OSError) as error:
        return SystemFinding(
            "fail", f"The store for files cannot be listed: {error}", "Check HOLDFAST_STORAGE_URL."
        )
    return SystemFinding("ok", "The store for files can be listed.")


def format_age(age: timedelta) -> str:
    """Write a duration with its largest unit, such as `3 hours`."""
    seconds = max(0, int(age.total_seconds()))
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} seconds"
