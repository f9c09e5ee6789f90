"""The tables of the driver for the public harness: which samples are stalls, and what explains them."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from bench.harness import main as entry
from bench.harness.main import HarnessMetrics
from bench.harness.results import EntrySample, RunResult
from bench.harness.server_samples import ServerMonitor, ServerSample

MACHINE = {"user": 0, "nice": 0, "system": 0, "idle": 0, "iowait": 0, "irq": 0, "softirq": 0, "steal": 0}


def build_server_sample(at: float, **fields: object) -> ServerSample:
    values = {
        "waits": {}, "vacuums": [], "wal_bytes": int(at * 2_000_000), "checkpoints": 0,
        "checkpoint_write_ms": 0.0, "checkpoint_sync_ms": 0.0,
        "cpu_ticks": {**MACHINE, "user": int(at * 100), "iowait": int(at * 100)},
    }  # fmt: skip
    return ServerSample(at, **{**values, **fields})  # type: ignore[arg-type]


def build_result(completion_rates: list[float], server: list[ServerSample]) -> RunResult:
    samples = [
        EntrySample(float(at), {"completion_rate": rate, "queue_depth": 7.0, "claim_p99_ms": 1.0})
        for at, rate in enumerate(completion_rates, 1)
    ]
    return RunResult(samples, 1.0, 1.0, 2.0, len(samples), ServerMonitor("", server))


def test_a_sample_below_half_of_the_offered_rate_is_a_stall() -> None:
    server = [build_server_sample(at) for at in range(6)]
    stalls = build_result([800, 400, 399, 900, 0], server).list_stalls(800)
    assert [line.partition(";")[0] for line in stalls] == [
        "00:00:03: 399 completions/s, depth 7", "00:00:05: 0 completions/s, depth 7",
    ]  # fmt: skip


def test_a_stall_says_what_the_server_did() -> None:
    server = [
        build_server_sample(0),
        build_server_sample(1, waits={"LWLock/WALWrite": 3, "checkpointer IO/DataFileSync": 1}),
        build_server_sample(
            2,
            vacuums=["tasks (scanning heap)"],
            checkpoints=1,
            checkpoint_write_ms=1500.0,
            checkpoint_sync_ms=200.0,
        ),
        build_server_sample(5),
    ]
    [line] = build_result([800, 10], server).list_stalls(800)
    assert "waits LWLock/WALWrite 3, checkpointer IO/DataFileSync 1" in line
    assert "WAL 2.0 MB/s" in line
    assert "machine 50% busy, 50% waiting for disks" in line
    assert "checkpoint (written in 1.5 s, synced in 0.2 s)" in line
    assert "autovacuum of tasks (scanning heap)" in line


def test_a_server_that_did_not_answer_is_named() -> None:
    server = [build_server_sample(0), build_server_sample(2.5)]
    [line] = build_result([800, 10], server).list_stalls(800)
    assert "the server did not answer the monitor for 2.5 s" in line


@pytest.mark.parametrize("waited_ms", [0.05, 0.1, 0.4, 1.0, 25.0, 1500.0])
def test_percentiles_of_the_entry_are_right_within_six_percent(waited_ms: float) -> None:
    metrics = HarnessMetrics()
    for _ in range(100):
        metrics.record_start(waited_ms / 1000)
    percentiles = metrics.compute_percentiles()
    assert set(percentiles) == {"claim_p50_ms", "claim_p95_ms", "claim_p99_ms"}
    for value in percentiles.values():
        assert max(waited_ms, 0.1) <= value * 1.001 <= max(waited_ms, 0.1) * 1.07


def test_percentiles_without_jobs_are_zero() -> None:
    assert set(HarnessMetrics().compute_percentiles().values()) == {0.0}


async def test_a_timer_that_ends_too_early_adds_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second sample of the same moment would have no completions, which looks like a stall."""
    clock, sampled_at = [100.2], list[float]()
    rates = list[float]()

    async def sleep_a_bit_less(seconds: float) -> None:
        clock[0] += max(seconds - 0.002, 0)
        entry.metrics.completed = int(clock[0] * 800)

    def record_line(line: dict[str, Any]) -> None:
        if line["metric"] == "completion_rate":
            sampled_at.append(clock[0])
            rates.append(line["value"])
            if len(rates) == 5:
                raise asyncio.CancelledError

    monkeypatch.setattr(time, "time", lambda: clock[0])
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(entry, "SAMPLE_INTERVAL_S", 1.0)
    monkeypatch.setattr(asyncio, "sleep", sleep_a_bit_less)
    monkeypatch.setattr(entry, "print_json_line", record_line)
    monkeypatch.setattr(entry, "metrics", HarnessMetrics())
    entry.metrics.completed = int(clock[0] * 800)
    with pytest.raises(asyncio.CancelledError):
        await entry.print_samples(SimpleNamespace(estimate=0))  # type: ignore[arg-type]
    assert [round(at) for at in sampled_at] == [101, 102, 103, 104, 105]
    assert all(790 < rate < 810 for rate in rates)
