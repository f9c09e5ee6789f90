"""The columns of the job list, and which of them a browser has chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

COLUMNS_COOKIE: Final = "holdfast_columns"


class JobColumn(NamedTuple):
    """A column of the job list: its label, and whether it is shown unless the user chooses others."""

    label: str
    is_default: bool = True
    tooltip: str = ""


JOB_COLUMNS: Final[Mapping[str, JobColumn]] = {
    "id": JobColumn("Job"),
    "state": JobColumn("State"),
    "type": JobColumn("Task"),
    "queue": JobColumn("Queue"),
    "owner": JobColumn("Owner"),
    "details": JobColumn("Error or progress"),
    "payload": JobColumn("Payload", False),
    "worker": JobColumn("Worker", False),
    "limit_key": JobColumn("Limit key", False),
    "attempt": JobColumn("Attempt", False, "Number of attempts so far"),
    "wait": JobColumn("Wait", False, "Time from due to started"),
    "run": JobColumn("Run", True, "Time from started to finished, or until now"),
    "created": JobColumn("Created"),
}


def parse_chosen_columns(text: str | None) -> list[str]:
    """Return the chosen columns in the order of the list, or the default columns if none is valid."""
    chosen = set((text or "").split("."))
    names = [name for name in JOB_COLUMNS if name in chosen]
    return names or [name for name, column in JOB_COLUMNS.items() if column.is_default]


def format_chosen_columns(names: Iterable[str]) -> str:
    """Format chosen columns as the value of the cookie."""
    return ".".join(name for name in names if name in JOB_COLUMNS)
