"""The results as a page: tables, pictures, and what they were taken with."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

from bench.peers.parts import IDLE_SECONDS, ROUNDS, SETTLE_SECONDS
from bench.peers.peers import PEERS
from bench.peers.results import Measurements, Outcome, Results, Value

NO_JOB_QUEUES = {"holdfast", "pgmq"}
LOWER_IS_BETTER = ("ms", "/min", "/job", " MB", "/100,000 jobs")
GROWTH = "Cost as work grows"
HEAD = """# Benchmarks against other queues

Written by `make bench-peers`; the figures of a table are of one run on one server, so compare within a table
only.

No-op jobs; jobs a second unless a column says otherwise; `-` is not measured, the reason is below the table.
Rates on two cores vary by some tenths from minute to minute: small differences mean nothing. In the last line
of a table more than 1 is better than every other job queue, whichever way the column counts; pgmq is none
(see below).

![Jobs a second, drained by one and by two processes](benchmarks.svg)
"""
# Title and text of each part.
TEXTS = {
    "turns": (
        "Enqueue and drain, by turns",
        f"""Everybody once, then everybody again: medians of {ROUNDS["turns"]} rounds, with the slowest and
the fastest. A drain is timed from the first job that is gone to the moment when nothing is unfinished.""",
    ),
    "basic": (
        "Enqueue, drain, idle, wake up",
        f"""A drain is timed from the first job that is gone to the moment the store has nothing unfinished;
process starts do not count. WAL, transactions and dead rows (updated or deleted, in all tables) are counted
from enqueueing in bulk to the end. Idle is one worker with nothing to do, watched for {IDLE_SECONDS:.0f} s
after {SETTLE_SECONDS:.0f} s. Wake-ups are timed from before the enqueue to the handler, one each 25 ms;
the first five do not count.""",
    ),
    "pinned": (
        "An old snapshot",
        """Another connection holds a repeatable-read snapshot from before the jobs were enqueued, so no row
that dies can be cleaned away. The usual drain is that of the same run, without the snapshot.""",
    ),
    "backlog": (
        "A long queue",
        """One process, timed from its first job for some seconds; then we count how many are gone.""",
    ),
    "growth": (
        GROWTH,
        """Jobs a second of one process with so many waiting, timed from its first job to the last or for some
seconds; the last column is that of the long queue.

![Jobs a second with a thousand to a million waiting](benchmarks-growth.svg)""",
    ),
    "history": (
        "A long history",
        """The same with so many finished jobs in the tables, for those that keep them; with pgqueuer so many
rows of its log, three a job.""",
    ),
    "running": (
        "Many running",
        """One worker holds so many jobs that do not end, and renews what it has to; another process drains
the usual number beside it.""",
    ),
    "memory": (
        "Memory of a worker",
        """Resident size of one worker with all processes it started: before its first job, after its usual
drain, and how it grew with 20,000 to 100,000 more. What forks share counts once, files they map for each.""",
    ),
}
ABOUT = """
## What was run

Each peer has a database of its own on the same server, `fsync` and `synchronous_commit` on, and is driven by
an adapter of ours (`bench/peers/adapters`) through its public API with one setting each, as its documentation
recommends or as was found to be fast; nobody was tuned in a sweep, batch sizes differ, and that is part of
the ranking. What would take longer than a quarter of a minute to enqueue, and all history, is one row that
its API made, multiplied in its own tables (`bench/peers/rows.py`), then vacuumed and analysed.

{notes}
"""


def table(results: Mapping[str, Measurements]) -> str:
    columns = list(dict.fromkeys(column for result in results.values() for column in result))
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for name, result in results.items():
        lines.append(f"| {name} | " + " | ".join(shown(result.get(column)) for column in columns) + " |")
    others = [result for name, result in results.items() if name not in NO_JOB_QUEUES]
    if "holdfast" in results and others:
        ratios = [_ratio(results["holdfast"], others, column) for column in columns]
        lines.append("| **Holdfast against the best other job queue** | " + " | ".join(ratios) + " |")
    return "\n".join(lines)


def known(value: Value | None) -> float:
    """As a number, which is none where there is only a word or nothing."""
    return float(value) if isinstance(value, (int, float)) else math.nan


def _ratio(ours: Measurements, others: list[Measurements], column: str) -> str:
    """More than 1 is better than all of them, whichever way the column counts."""
    lower = column.endswith(LOWER_IS_BETTER)
    theirs = [value for result in others if not math.isnan(value := known(result.get(column)))]
    mine = known(ours.get(column))
    if not theirs or math.isnan(mine):
        return "-"
    best = (min if lower else max)(theirs)
    top, bottom = (best, mine) if lower else (mine, best)
    return f"{top / bottom:.2f}" if bottom > 0 and top >= 0 else "-"


def shown(value: Value | None) -> str:
    if isinstance(value, str):
        return value
    if value is None or math.isnan(value):
        return "-"
    value = round(value, 2) + 0.0  # there is no -0.00
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" if value >= 1 else f"{value:.2f}"


def with_backlog(results: Results) -> dict[str, Measurements]:
    """The steps of growth, the long queue being the last of them."""
    steps = {name: dict(outcome.measurements) for name, outcome in results.get("growth", {}).items()}
    for name, outcome in results.get("backlog", {}).items():
        for column, value in outcome.measurements.items():
            if (size := re.fullmatch(r"drain, ([\d,]+) waiting", column)) and name in steps:
                steps[name][size[1]] = value
    return steps


def section(part: str, results: Results) -> str:
    title, text = TEXTS[part]
    outcomes = results[part]
    rows = (
        with_backlog(results)
        if part == "growth"
        else {name: kept.measurements for name, kept in outcomes.items()}
    )
    lost = "\n".join(f"- {name}: {kept.lost}" for name, kept in outcomes.items() if kept.lost)
    missing = f"\n\nNot measured:\n\n{lost}" if lost else ""
    return f"\n## {title}\n\n{text}\n\n{_taken(outcomes)}\n\n{table(rows)}{missing}\n"


def _taken(outcomes: Mapping[str, Outcome]) -> str:
    """When and with what; peers that were measured in runs of their own are named."""
    stamps: dict[str, list[str]] = {}
    seconds = sum(kept.seconds for kept in outcomes.values())
    for name, kept in outcomes.items():
        stamps.setdefault(str(kept.stamp), []).append(name)
    if len(stamps) == 1:
        return f"{next(iter(stamps))} Seconds it took: {seconds:.0f}."
    return "\n".join(f"- {', '.join(names)}: {stamp}" for stamp, names in stamps.items())


def page(results: Results, versions: Mapping[str, str]) -> str:
    taking_part = [name for name in PEERS if any(name in outcomes for outcomes in results.values())]
    notes = "\n".join(
        f"- {name} {versions.get(name, '')}: {PEERS[name].jobs:,} jobs a drain; {PEERS[name].note}."
        for name in taking_part
    )
    sections = "".join(section(part, results) for part in TEXTS if results.get(part))
    return HEAD + sections + ABOUT.format(notes=notes)


def write(folder: Path, text: str, pictures: Mapping[str, str]) -> None:
    (folder / "benchmarks.md").write_text(text, encoding="utf-8")
    for name, drawn in pictures.items():
        (folder / name).write_text(drawn, encoding="utf-8")
