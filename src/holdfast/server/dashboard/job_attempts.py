"""The attempts of a job: those that failed, which are stored, and those that run or succeeded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def list_all_attempts(tasks: Sequence[Row], stored: Sequence[Row]) -> list[dict[str, Any]]:
    """Return all attempts of these tasks, newest first: the stored ones, and the last attempt of each task.

    The engine stores attempts that did not succeed. An attempt that runs or has succeeded is known from the
    row of its task.
    """
    known = {(attempt["task_id"], attempt["attempt"]) for attempt in stored}
    attempts = [
        *(dict(attempt) for attempt in stored),
        *(
            _build_last_attempt(task)
            for task in tasks
            if task["started_at"]
            and task["status"] in {"running", "succeeded", "cancelled"}
            and (task["id"], task["attempt"]) not in known
        ),
    ]
    # Attempts that have not ended come first.
    attempts.sort(key=lambda attempt: str(attempt["ended_at"] or "9"), reverse=True)
    return attempts


def _build_last_attempt(task: Row) -> dict[str, Any]:
    names = ("message", "traceback", "fingerprint", "error_type", "host", "version")
    return {
        **dict.fromkeys(names),
        "task_id": task["id"],
        "attempt": task["attempt"],
        "outcome": task["status"],
        "worker": task["worker"],
        "started_at": task["started_at"],
        "ended_at": task["finished_at"],
        "name": task["name"],
    }


def group_log_lines(lines: Iterable[Row], *, max_lines_per_attempt: int) -> dict[tuple[str, int], list[Row]]:
    """Group log lines by task and attempt, with the last lines of each attempt."""
    grouped: dict[tuple[str, int], list[Row]] = {}
    for line in lines:
        grouped.setdefault((line["task_id"], line["attempt"]), []).append(line)
    return {key: members[-max_lines_per_attempt:] for key, members in grouped.items()}
