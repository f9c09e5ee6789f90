"""`python -m campaign.report FILE`: the table of a report that `--report` wrote, one line a run."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

FAULTS = {
    "kills": "workers killed", "pooled": "workers killed", "zombies": "frozen", "crashes": "crashes",
    "partitions": "partitions", "replies": "cut replies", "cut": "backends ended",
    "failover": "failovers", "failover-sync": "failovers",
    "exhausted": "connections taken", "poison": "poisons", "schedules": "ticks", "batches": "batches",
    "graphs": "graphs", "unique": "keys", "quotas": "owners", "full": "refusals",
}  # fmt: skip


def rows(results: list[dict[str, Any]]) -> list[str]:
    """Runs of the same name are added up."""
    found: dict[str, dict[str, Any]] = defaultdict(lambda: defaultdict(float))
    for result in results:
        row = found[result["run"]]
        counted = FAULTS.get(result["run"], "workers killed")
        row["what"] = counted
        row["faults"] += result.get(counted, 0)
        for name in ("tasks", "executions", "repeated", "seconds"):
            row[name] += result[name]
        row["broken"] += len(result["broken"])
        row["failed"] += result["ended as"].get("failed", 0)
        over = result["taken over"]
        row["most"] = max(row["most"], over.get("most s", 0.0))
        row["late"] += over.get("later than lease + 1 s", 0)
    return [_row(name, row) for name, row in found.items()]


def _row(name: str, row: dict[str, Any]) -> str:
    cells = [f"{row['faults']:,.0f} {row['what']}"]
    cells += [f"{row[column]:,.0f}" for column in ("tasks", "executions", "repeated", "failed")]
    cells.append(f"{row['most']:.1f} s, {row['late']:.0f} late" if row["most"] else "")
    cells += [f"{row['broken']:,.0f}", f"{row['seconds'] / 60:.0f}"]
    return f"| {name} | " + " | ".join(cells) + " |"


def main() -> None:
    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    print(
        "| run | faults | tasks | executions | repeated | failed | taken over | promises broken | minutes |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    print("\n".join(rows([json.loads(line) for line in lines])))


if __name__ == "__main__":
    main()
