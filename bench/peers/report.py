"""Write docs/explain/benchmarks.md: tables, charts and the conditions of each measurement."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

from bench.peers.parts import IDLE_SECONDS, IDLE_WARM_UP_SECONDS, ROUNDS_BY_PART
from bench.peers.peers import PEERS
from bench.peers.results import Measurements, MeasurementValue, PeerResult, ResultsByPart

EXCLUDED_FROM_RATIO = {"holdfast", "pgmq"}
LOWER_IS_BETTER_SUFFIXES = ("ms", "/min", "/job", " MB", "/100,000 jobs")
GROWTH_TITLE = "Cost as work grows"
PAGE_INTRODUCTION = """# Benchmarks against other queues

`make bench-peers` writes this page. It measures jobs that do nothing. Unless a column says
otherwise, numbers are jobs per second. The numbers of a table come from one run on one server, so
compare numbers of the same table only. On two cores, rates vary by some tens of percent from
minute to minute: small differences mean nothing.

`-` means not measured; the reason is below the table. The last line of a table compares Holdfast
with the best other job queue: more than 1 means that Holdfast is better, also in columns where
lower values are better. pgmq is left out of this comparison, because it has no retries,
heartbeats or tasks (see below).

![Jobs per second, drained by one and by two processes](benchmarks.svg)
"""
# Title and text of each part.
PART_TEXTS = {
    "turns": (
        "Enqueue and drain, by turns",
        f"""All systems run one after the other, {ROUNDS_BY_PART["turns"]} times. The table shows medians,
with the slowest and the fastest round. A drain is timed from the first finished job to the moment
when no job is unfinished. "10 at once" is the default of a Holdfast worker; all other drains have
the settings below. "Snapshot pinned": another connection holds an old snapshot.""",
    ),
    "work": (
        "Jobs that work",
        f"""By turns, {ROUNDS_BY_PART["work"]} times; the table shows medians. Each job gets a text of 1 KB,
waits for 5 ms and returns the text; one process runs 100 at once. Holdfast stores the results,
graphile-worker does not.""",
    ),
    "basic": (
        "Enqueue, drain, idle, wake up",
        f"""A drain is timed from the first finished job to the moment when no job is unfinished; the start of
processes does not count. WAL, transactions and dead rows (updated or deleted, in all tables) are
counted from the bulk enqueue to the end. Idle is one worker without work, observed for
{IDLE_SECONDS:.0f} s after a warm-up of {IDLE_WARM_UP_SECONDS:.0f} s. A wake-up is the time from
before the enqueue to the start of the handler, with one job every 25 ms; the first five do not
count.""",
    ),
    "pinned": (
        "An old snapshot",
        """Another connection holds a repeatable-read snapshot from before the jobs were enqueued, so
PostgreSQL cannot remove dead rows. The usual drain is of the same run, without the snapshot.""",
    ),
    "backlog": (
        "A long queue",
        """One process works on a long queue for some seconds, timed from its first job. Then we count the
finished jobs.""",
    ),
    "growth": (
        GROWTH_TITLE,
        """Jobs per second of one process, by the number of waiting jobs, timed from its first job to the
last or for some seconds. The last column is the one of the long queue.

![Jobs per second with a thousand to a million waiting](benchmarks-growth.svg)""",
    ),
    "history": (
        "A long history",
        """The same drain with ten million finished jobs in the tables, for systems that keep them. For
pgqueuer these are rows of its log, three for each job.""",
    ),
    "running": (
        "Many running",
        """One worker holds 10,000 jobs that do not end, and renews their leases where the system has leases.
Another process drains the usual number of jobs.""",
    ),
    "memory": (
        "Memory of a worker",
        """Resident memory of one worker with all its processes: before its first job, after its usual drain,
and its growth over 20,000 to 100,000 more jobs. Memory that forked processes share counts once;
mapped files count for each process.""",
    ),
}
CONDITIONS_TITLE = "What was run"
PAGE_CONDITIONS = f"""
## {CONDITIONS_TITLE}

Each system has its own database on the same server, with `fsync` and `synchronous_commit` on. Our
adapters (`bench/peers/adapters`) call its public API, with one configuration for each system: the
one that its documentation recommends, or one that we found to be fast. We did not search for the
best configuration, and batch sizes differ; both influence the ranking. If enqueueing would take
longer than 15 seconds, and for all finished jobs, the API creates one row, which is then copied
in the tables of that system (`bench/peers/rows.py`). The tables are vacuumed and analysed
afterwards.

{{notes}}
"""


def format_table(results: Mapping[str, Measurements]) -> str:
    columns = list(dict.fromkeys(column for result in results.values() for column in result))
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for name, result in results.items():
        lines.append(
            f"| {name} | " + " | ".join(format_value(result.get(column)) for column in columns) + " |"
        )
    others = [result for name, result in results.items() if name not in EXCLUDED_FROM_RATIO]
    if "holdfast" in results and others:
        ratios = [_format_ratio(results["holdfast"], others, column) for column in columns]
        lines.append("| **Holdfast against the best other job queue** | " + " | ".join(ratios) + " |")
    return "\n".join(lines)


def to_number(value: MeasurementValue | None) -> float:
    """Return a measurement as a number, or NaN when there is only text or nothing."""
    return float(value) if isinstance(value, (int, float)) else math.nan


def _format_ratio(ours: Measurements, others: list[Measurements], column: str) -> str:
    """Return our value against the best other value. More than 1 means that ours is better."""
    lower = column.endswith(LOWER_IS_BETTER_SUFFIXES)
    theirs = [value for result in others if not math.isnan(value := to_number(result.get(column)))]
    mine = to_number(ours.get(column))
    if not theirs or math.isnan(mine):
        return "-"
    best = (min if lower else max)(theirs)
    top, bottom = (best, mine) if lower else (mine, best)
    return f"{top / bottom:.2f}" if bottom > 0 and top >= 0 else "-"


def format_value(value: MeasurementValue | None) -> str:
    if isinstance(value, str):
        return value
    if value is None or math.isnan(value):
        return "-"
    value = round(value, 2) + 0.0  # avoid -0.00
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" if value >= 1 else f"{value:.2f}"


def merge_growth_and_backlog(results: ResultsByPart) -> dict[str, Measurements]:
    """Return the measurements of the part `growth`, with those of `backlog` as the last step."""
    steps = {name: dict(outcome.measurements) for name, outcome in results.get("growth", {}).items()}
    for name, outcome in results.get("backlog", {}).items():
        for column, value in outcome.measurements.items():
            if (size := re.fullmatch(r"drain, ([\d,]+) waiting", column)) and name in steps:
                steps[name][size[1]] = value
    return steps


def format_section(part: str, results: ResultsByPart) -> str:
    title, text = PART_TEXTS[part]
    peer_results = results[part]
    rows = (
        merge_growth_and_backlog(results)
        if part == "growth"
        else {name: result.measurements for name, result in peer_results.items()}
    )
    reasons = "\n".join(
        f"- {name}: {result.missing_reason}" for name, result in peer_results.items() if result.missing_reason
    )
    missing = f"\n\nNot measured:\n\n{reasons}" if reasons else ""
    return f"\n## {title}\n\n{text}\n\n{_format_stamps(peer_results)}\n\n{format_table(rows)}{missing}\n"


def _format_stamps(peer_results: Mapping[str, PeerResult]) -> str:
    """Return date, commit and machine of the measurements. Peers with different stamps are listed by name."""
    stamps: dict[str, list[str]] = {}
    seconds = sum(result.seconds for result in peer_results.values())
    for name, result in peer_results.items():
        stamps.setdefault(str(result.stamp), []).append(name)
    if len(stamps) == 1:
        return f"{next(iter(stamps))} Seconds it took: {seconds:.0f}."
    return "\n".join(f"- {', '.join(names)}: {stamp}" for stamp, names in stamps.items())


def build_page(results: ResultsByPart, versions: Mapping[str, str], old_page: str = "") -> str:
    """Build the page. Parts and peers without results keep their text of the old page."""
    old_sections = split_sections(old_page)
    sections = "".join(
        format_section(part, results) if results.get(part) else old_sections.get(title, "")
        for part, (title, _) in PART_TEXTS.items()
    )
    measured = {name for peer_results in results.values() for name in peer_results}
    old_notes = old_sections.get(CONDITIONS_TITLE, "").splitlines()
    notes: list[str] = []
    for name, peer in PEERS.items():
        if name in measured:
            notes.append(f"- {name} {versions.get(name, '')}: {peer.jobs:,} jobs a drain; {peer.note}.")
        else:
            notes += [line for line in old_notes if line.startswith(f"- {name} ")]
    return PAGE_INTRODUCTION + sections + PAGE_CONDITIONS.format(notes="\n".join(notes))


def split_sections(page: str) -> dict[str, str]:
    """Return the sections of a page by title, each with its heading and the empty line before it."""
    parts = re.split(r"(?m)^## (.+)$", page)
    return {
        title: f"\n## {title}{text.rstrip()}\n" for title, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def write_page(folder: Path, text: str, pictures: Mapping[str, str]) -> None:
    (folder / "benchmarks.md").write_text(text, encoding="utf-8")
    for name, svg in pictures.items():
        (folder / name).write_text(svg, encoding="utf-8")
