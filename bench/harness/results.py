"""What one run of an entry showed, and the tables of all runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from bench.harness.server_samples import ServerMonitor

STALL_SHARE = 0.5  # of the offered rate
PEAK_COLUMNS = (
    "entry", "workers", "jobs/s, median of rounds", "all rounds", "claim p50/p95/p99 (worst) ms",
    "CPU us per job, entry + server",
)  # fmt: skip
HOLD_COLUMNS = (
    "entry", "completions/s", "depth at most", "claim p50/p95/p99 (worst) ms", "stalls",
    "CPU us per job, entry + server",
)  # fmt: skip


@dataclass(frozen=True)
class EntrySample:
    """The metrics that an entry sent at one time."""

    at: float
    metrics: dict[str, float]


@dataclass
class RunResult:
    """The samples of the measured time, and the CPU time of the entry and of the server."""

    samples: list[EntrySample]
    window_s: float
    entry_cpu_s: float
    server_cpu_s: float
    seconds: float
    monitor: ServerMonitor
    stop_s: float = 0.0
    exit_code: int | None = None

    def list_values(self, metric: str) -> list[float]:
        return [sample.metrics[metric] for sample in self.samples] or [0.0]

    @property
    def completion_rate(self) -> float:
        return statistics.mean(self.list_values("completion_rate"))

    @property
    def entry_us(self) -> float:
        """CPU microseconds of the entry per completed job, producer and worker."""
        return self.entry_cpu_s / max(self.completion_rate * self.seconds, 1) * 1e6

    @property
    def server_us(self) -> float:
        return self.server_cpu_s / max(self.completion_rate * self.seconds, 1) * 1e6

    def format_latency(self) -> str:
        """Return the medians of the claim percentiles over the samples, and the worst p99."""
        medians = [statistics.median(self.list_values(f"claim_p{n}_ms")) for n in (50, 95, 99)]
        worst = max(self.list_values("claim_p99_ms"))
        return "/".join(f"{value:,.0f}" for value in medians) + f" ({worst:,.0f})"

    def describe(self) -> str:
        rates = self.list_values("completion_rate")
        return (
            f"{self.completion_rate:,.0f} completions/s ({min(rates):,.0f} to {max(rates):,.0f}),"
            f" offered {statistics.mean(self.list_values('enqueue_rate')):,.0f},"
            f" depth at most {max(self.list_values('queue_depth')):,.0f}, claim {self.format_latency()} ms,"
            f" CPU {self.entry_us:.0f} + {self.server_us:.0f} us a job,"
            f" exit {self.exit_code} after {self.stop_s:.1f} s"
        )

    def list_stalls(self, offered: float) -> list[str]:
        """Return a line for every sample with fewer completions than half of the offered rate."""
        lines: list[str] = []
        for sample in self.samples:
            rate, depth = sample.metrics["completion_rate"], sample.metrics["queue_depth"]
            if rate < offered * STALL_SHARE:
                at = datetime.fromtimestamp(sample.at, UTC).strftime("%H:%M:%S")
                server = self.monitor.describe(sample.at - self.window_s, sample.at)
                lines.append(f"{at}: {rate:,.0f} completions/s, depth {depth:,.0f}; {server}")
        return lines


def print_peak_table(results: dict[tuple[str, int], list[RunResult]]) -> None:
    rows: list[Sequence[object]] = []
    for (name, workers), runs in sorted(results.items(), key=lambda item: (item[0][1], item[0][0])):
        rates = sorted(run.completion_rate for run in runs)
        entry_us = statistics.median(run.entry_us for run in runs)
        server_us = statistics.median(run.server_us for run in runs)
        all_rates = ", ".join(f"{rate:,.0f}" for rate in rates)
        latency, cost = runs[-1].format_latency(), f"{entry_us:.0f} + {server_us:.0f}"
        rows.append((name, workers, f"{statistics.median(rates):,.0f}", all_rates, latency, cost))
    print_table(PEAK_COLUMNS, rows)


def print_hold_table(results: dict[str, RunResult], offered: float) -> None:
    rows: list[Sequence[object]] = []
    for name, run in results.items():
        depth = f"{max(run.list_values('queue_depth')):,.0f}"
        stalls = f"{len(run.list_stalls(offered))} of {len(run.samples)} samples"
        cost = f"{run.entry_us:.0f} + {run.server_us:.0f}"
        rate = f"{run.completion_rate:,.0f} of {offered:,.0f}"
        rows.append((name, rate, depth, run.format_latency(), stalls, cost))
    print_table(HOLD_COLUMNS, rows)
    for name, run in results.items():
        for line in run.list_stalls(offered):
            print(f"stall of {name} at {line}")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |", flush=True)
