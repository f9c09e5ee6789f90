"""The curves of a soak run, and the judgement whether they are flat."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# A curve is flat if its last quarter is at most this share above its second quarter, or within the allowance.
MAX_GROWTH = 0.25
# Smaller changes are noise: bytes of memory, bytes of tables, rows, seconds.
ALLOWANCES = {
    "worker_bytes": 40e6,
    "api_bytes": 30e6,
    "systems_bytes": 60e6,
    "live_table_bytes": 30e6,
    "dead_rows": 50_000,
    "latency_p99_s": 0.5,
}
MIN_SAMPLES = 8


@dataclass(frozen=True)
class Sample:
    """One point of every curve."""

    seconds: float
    worker_bytes: float
    api_bytes: float
    live_table_bytes: float
    dead_rows: float
    latency_p50_s: float
    latency_p99_s: float
    finished_jobs: int
    waiting_tasks: int
    finished_streams: int = 0
    systems_bytes: float = 0
    exports: int = 0
    reports: int = 0
    media: int = 0
    clips: int = 0
    failed: int = 0
    deliveries: int = 0
    # Not judged: history and archives grow until their retention ends, which is longer than a run.
    database_bytes: float = 0

    def as_row(self) -> dict[str, Any]:
        return asdict(self)


def find_growing_curves(samples: list[Sample]) -> list[str]:
    """Return a sentence for each curve that grew. The first quarter is warm-up and is not compared."""
    if len(samples) < MIN_SAMPLES:
        return [f"only {len(samples)} samples: run longer"]
    quarter = len(samples) // 4
    problems: list[str] = []
    for name, allowance in ALLOWANCES.items():
        early = statistics.median(getattr(sample, name) for sample in samples[quarter : 2 * quarter])
        late = statistics.median(getattr(sample, name) for sample in samples[-quarter:])
        if late > early * (1 + MAX_GROWTH) and late - early > allowance:
            problems.append(f"{name} grew from {early:,.3f} to {late:,.3f}")
    return problems


def sum_memory_of_tree(pid: int) -> float:
    """Return the proportional set size of a process and all its descendants."""
    total, todo = 0.0, [pid]
    while todo:
        current = todo.pop()
        try:
            for line in Path(f"/proc/{current}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
            for thread in Path(f"/proc/{current}/task").iterdir():
                todo += [int(child) for child in (thread / "children").read_text().split()]
        except OSError:  # it has ended
            continue
    return total
