"""Write the table of rates in README.md from the measurements by turns."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

from bench.peers.parts import DEFAULT_CONCURRENCY_COLUMN, ONE_BY_ONE_COLUMN, ROUNDS_BY_PART
from bench.peers.report import format_value, to_number
from bench.peers.results import Measurements, PeerResult

BEGIN_LINE = "<!-- rates: `make bench-peers PARTS=turns` writes the lines up to the next mark -->"
END_LINE = "<!-- rates: end -->"
README_ROWS = {
    DEFAULT_CONCURRENCY_COLUMN: "drained by one process, ten at once (our default)",
    "drain, 1 process": "drained by one process, each with its fast settings",
    "drain, 2 processes": "drained by two processes",
    ONE_BY_ONE_COLUMN: "enqueued one by one",
    "enqueue bulk": "enqueued in bulk",
    "drain, snapshot pinned": "drained with an old snapshot open",
}
README_PEERS = {
    "holdfast": "Holdfast",
    "graphile-worker": "graphile-worker",
    "pgmq": "pgmq¹",
    "pgqueuer": "PgQueuer",
    "pg-boss": "pg-boss",
    "procrastinate": "procrastinate",
    "dramatiq": "Dramatiq²",
}


def build_table(results: Mapping[str, PeerResult]) -> str:
    """Build the table: medians, with the slowest and the fastest round. The best of a row is bold."""
    names = [name for name in README_PEERS if name in results]
    stamp = results[names[0]].stamp
    lines = [
        f"Medians of {ROUNDS_BY_PART['turns']} rounds by turns, with the slowest and the fastest round."
        f" {stamp.server}, {stamp.machine}, {stamp.when}.",
        "",
        "| jobs a second | " + " | ".join(README_PEERS[name] for name in names) + " |",
        "|---|" + "---:|" * len(names),
    ]
    for column, label in README_ROWS.items():
        cells = format_cells([results[name].measurements for name in names], column)
        if cells:
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def format_cells(measurements: list[Measurements], column: str) -> list[str]:
    """Return a cell for each peer, or nothing if no peer was measured."""
    rates = [to_number(each.get(column)) for each in measurements]
    best = max((rate for rate in rates if not math.isnan(rate)), default=math.nan)
    if math.isnan(best):
        return []
    cells: list[str] = []
    for rate, each in zip(rates, measurements, strict=True):
        text = f"**{format_value(rate)}**" if rate == best else format_value(rate)
        spread = each.get(f"{column}, from to")
        cells.append(f"{text} ({spread})" if spread and not math.isnan(rate) else text)
    return cells


def write_readme(path: Path, results: Mapping[str, PeerResult]) -> None:
    """Replace the table between the marks."""
    page = path.read_text(encoding="utf-8")
    table = f"{BEGIN_LINE}\n\n{build_table(results)}\n\n{END_LINE}"
    pattern = f"{re.escape(BEGIN_LINE)}.*?{re.escape(END_LINE)}"
    path.write_text(re.sub(pattern, lambda _: table, page, flags=re.DOTALL), encoding="utf-8")
