"""Print a report of the campaign as a Markdown table: `python -m campaign.report FILE`."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

FAULT_NAMES_BY_RUN = {
    "kills": "workers killed", "pooled": "workers killed", "zombies": "frozen", "crashes": "crashes",
    "partitions": "partitions", "replies": "cut replies", "cut": "backends ended",
    "failover": "failovers", "failover-sync": "failovers",
    "exhausted": "connections taken", "poison": "poisons", "schedules": "ticks", "batches": "batches",
    "graphs": "graphs", "unique": "keys", "quotas": "owners", "full": "refusals",
}  # fmt: skip


def build_table_rows(results: list[dict[str, Any]]) -> list[str]:
    """Return the rows of the table. Runs of the same name are added up."""
    totals: dict[str, dict[str, Any]] = defaultdict(lambda: defaultdict(float))
    for result in results:
        row = totals[result["run"]]
        fault_name = FAULT_NAMES_BY_RUN.get(result["run"], "workers killed")
        row["fault_name"] = fault_name
        row["faults"] += result.get(fault_name, 0)
        for name in ("tasks", "executions", "repeated", "seconds"):
            row[name] += result[name]
        row["broken"] += len(result["broken"])
        row["failed"] += result["ended as"].get("failed", 0)
        takeovers = result["taken over"]
        row["slowest"] = max(row["slowest"], takeovers.get("slowest s", 0.0))
        row["late"] += takeovers.get("later than lease + 1 s", 0)
    return [_format_row(name, row) for name, row in totals.items()]


def _format_row(name: str, row: dict[str, Any]) -> str:
    cells = [f"{row['faults']:,.0f} {row['fault_name']}"]
    cells += [f"{row[column]:,.0f}" for column in ("tasks", "executions", "repeated", "failed")]
    cells.append(f"{row['slowest']:.1f} s, {row['late']:.0f} late" if row["slowest"] else "")
    cells += [f"{row['broken']:,.0f}", f"{row['seconds'] / 60:.0f}"]
    return f"| {name} | " + " | ".join(cells) + " |"


def main() -> None:
    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    print(
        "| run | faults | tasks | executions | repeated | failed | taken over | promises broken | minutes |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    print("\n".join(build_table_rows([json.loads(line) for line in lines])))


if __name__ == "__main__":
    main()
