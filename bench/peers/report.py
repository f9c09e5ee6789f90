"""The results as a page: a table, a picture, and what they were taken with."""

from __future__ import annotations

import math
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from bench.peers.peers import PEERS, ROOT

Results = dict[str, dict[str, float]]
NO_JOB_QUEUES = {"holdfast", "pgmq"}
LOWER_IS_BETTER = ("ms", "/min", "/job")
HEAD = """# Benchmarks against other queues

Written by `make bench-peers`; every figure is of one run on one server, so compare within the table only.

{when}. {machine}. {server}. Commit {commit}. Load before it began: {load:.1f}.
Seconds it took: {seconds:.0f}.

![Jobs a second, drained by one and by two processes](benchmarks.svg)

No-op jobs; jobs a second unless a column says otherwise; `-` is not measured. Rates of one run on two cores
vary by some tenths: small differences mean nothing.

{table}

## What was run

Each peer has a database of its own on the same server, `fsync` and `synchronous_commit` on, and is driven by
an adapter of ours (`bench/peers/adapters`) through its public API with one setting each, as its documentation
recommends or as was found to be fast; nobody was tuned in a sweep, batch sizes differ, and that is part of
the ranking.

{notes}

A drain is timed from the first job that is gone to the moment the store has nothing unfinished; process
starts do not count. WAL and transactions are counted from enqueueing in bulk to the end. Idle is one worker
with nothing to do for {idle:.0f} s.
{missing}"""


def table(results: Results) -> str:
    columns = list(dict.fromkeys(column for result in results.values() for column in result))
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for name, result in results.items():
        lines.append(f"| {name} | " + " | ".join(_shown(result.get(column)) for column in columns) + " |")
    others = [result for name, result in results.items() if name not in NO_JOB_QUEUES]
    if "holdfast" in results and others:
        ratios = [_ratio(results["holdfast"], others, column) for column in columns]
        lines.append("| **Holdfast against the best other job queue** | " + " | ".join(ratios) + " |")
    return "\n".join(lines)


def _ratio(ours: dict[str, float], others: list[dict[str, float]], column: str) -> str:
    """More than 1 is better than all of them, whichever way the column counts."""
    lower = column.endswith(LOWER_IS_BETTER)
    known = [r[column] for r in others if not math.isnan(r.get(column, math.nan))]
    if not known or math.isnan(ours.get(column, math.nan)):
        return "-"
    best = (min if lower else max)(known)
    top, bottom = (best, ours[column]) if lower else (ours[column], best)
    return "-" if not bottom else f"{top / bottom:.2f}"


def _shown(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" if value >= 1 else f"{value:.2f}"


def page(
    results: Results, failed: dict[str, str], versions: dict[str, str], server: str, about: dict[str, float]
) -> str:
    notes = "\n".join(
        f"- {name} {versions.get(name, '')}: {PEERS[name].jobs:,} jobs a drain; {PEERS[name].note}."
        for name in results
    )
    lost = "\n".join(f"- {name}: {problem}" for name, problem in failed.items())
    return HEAD.format(
        when=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores,"
        f" Python {platform.python_version()}",
        server=server,
        commit=_commit(),
        table=table(results),
        notes=notes,
        missing=f"\nNot measured this time:\n\n{lost}\n" if lost else "",
        **about,
    )


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def picture(results: Results) -> str:
    """Bars as SVG, drawn here: two for each peer, as long as its rates."""
    columns = ("drain, 1 process", "drain, 2 processes")
    rates = {name: [_known(result.get(column)) for column in columns] for name, result in results.items()}
    shown = sorted(rates, key=lambda name: -rates[name][0])
    most = max((rate for each in rates.values() for rate in each), default=1.0) or 1.0
    row, left, width = 34, 130, 520
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 90} {row * len(shown) + 40}"'
        ' font-family="sans-serif" font-size="12">',
        "<title>Jobs a second, drained by one (dark) and by two processes (light)</title>",
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    for index, name in enumerate(shown):
        top = 10 + index * row
        weight = ' font-weight="bold"' if name == "holdfast" else ""
        parts.append(f'<text x="{left - 8}" y="{top + 18}" text-anchor="end"{weight}>{name}</text>')
        for number, (rate, colour) in enumerate(zip(rates[name], ("#1f4e79", "#9dc3e6"), strict=True)):
            long = max(1.0, width * rate / most)
            at = top + number * 13
            parts.append(f'<rect x="{left}" y="{at}" width="{long:.1f}" height="12" fill="{colour}"/>')
            parts.append(f'<text x="{left + long + 5:.1f}" y="{at + 10}" font-size="10">{rate:,.0f}</text>')
    legend = row * len(shown) + 28
    parts.append(
        f'<text x="{left}" y="{legend}" font-size="11">jobs a second; dark: one process, light: two</text>'
    )
    return "\n".join([*parts, "</svg>", ""])


def _known(value: float | None) -> float:
    return 0.0 if value is None or math.isnan(value) else value


def write(folder: Path, text: str, drawn: str) -> None:
    (folder / "benchmarks.md").write_text(text, encoding="utf-8")
    (folder / "benchmarks.svg").write_text(drawn, encoding="utf-8")
