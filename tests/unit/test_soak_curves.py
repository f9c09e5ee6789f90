"""The judgement of the soak run: flat, growing, and too short curves."""

from __future__ import annotations

from dataclasses import replace

from bench.soak.curves import Sample, find_growing_curves

FLAT = Sample(
    seconds=0, worker_bytes=200e6, api_bytes=80e6, live_table_bytes=50e6, dead_rows=100, latency_p50_s=0.01,
    latency_p99_s=0.1, finished_jobs=0, waiting_tasks=0,
)  # fmt: skip


def test_flat_curves_pass() -> None:
    assert find_growing_curves([FLAT] * 20) == []


def test_warm_up_is_not_compared() -> None:
    cold = replace(FLAT, worker_bytes=20e6)
    assert find_growing_curves([*[cold] * 5, *[FLAT] * 15]) == []


def test_growing_memory_is_named() -> None:
    samples = [replace(FLAT, worker_bytes=FLAT.worker_bytes * (1 + number / 10)) for number in range(20)]
    [problem] = find_growing_curves(samples)
    assert problem.startswith("worker_bytes grew from")


def test_short_run_proves_nothing() -> None:
    assert find_growing_curves([FLAT] * 7) == ["only 7 samples: run longer"]
