"""Compare the records of a run with the database and report every broken promise.

I1   every acknowledged job has ended                   I7   one callback per batch, after its last job
I2   every executed task was submitted                  I8   a key never exceeds its limit
I3   one accepted outcome, of the newest lease          I9   one job per schedule and tick
I4   executions of a task do not overlap                I10  the answer to a cancel stays true
I5   no attempt number is used twice                    I11  quotas are never exceeded
I6   a child begins after its parents' outcomes, once   I12  a dead worker's task is taken over in time
                                                         I13  a healthy task does not fail

A run names the rules that apply to it. The rules are the same for all runs.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from campaign.records import Execution, RecordLine, pair_executions, read_record_lines
from holdfast.engine.connection import Connection

ENDED_STATUSES = {"succeeded", "failed", "cancelled", "partial"}
NANOSECONDS_PER_SECOND = 1_000_000_000


@dataclass(frozen=True)
class Violation:
    """A broken promise: the rule, the task or job, and what happened."""

    rule: str
    subject: str
    description: str

    def __str__(self) -> str:
        return f"{self.rule} {self.subject}: {self.description}"


@dataclass(frozen=True)
class LedgerEntry:
    """A change of the status of a task, recorded by a trigger."""

    id: int
    task: str
    previous_status: str | None
    status: str
    attempt: int
    nonce: int | None
    at: int  # nanoseconds, same clock as the records


@dataclass
class RunHistory:
    """The records, the ledger and the final tables of one run, for the rules."""

    recorded: list[RecordLine]
    runs: list[Execution]
    ledger: list[LedgerEntry]
    status: dict[str, str]
    submitted: set[str]
    edges: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    limits: dict[str, int] = field(default_factory=dict[str, int])
    lease_s: float = 2.0
    slack_s: float = 1.0
    may_lose_acknowledged: bool = False
    batches: dict[str, list[str]] = field(default_factory=dict[str, list[str]])  # members by callback key
    ticks: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    quotas: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])  # allowed, used

    @property
    def runs_by_task(self) -> dict[str, list[Execution]]:
        grouped: dict[str, list[Execution]] = defaultdict(list)
        for run in self.runs:
            grouped[run.task].append(run)
        return grouped


async def read_history(folder: Path, connection: Connection, **extra_fields: Any) -> RunHistory:
    """Read the records of a run from `folder`, and the ledger and tables from its database."""
    recorded = sorted(read_record_lines(folder), key=lambda line: line.at)
    clock_offset_ns = time.time_ns() - time.monotonic_ns()
    entries = [
        LedgerEntry(
            r["id"],
            str(r["task"]),
            r["previous_status"],
            r["status"],
            r["attempt"],
            r["nonce"],
            int(r["at"]) - clock_offset_ns,
        )
        for r in await connection.fetch(
            "select id, task, previous_status, status, attempt, nonce,"
            " (extract(epoch from at) * 1e9)::bigint as at from campaign.ledger order by id"
        )
    ]
    status = {
        str(r["id"]): r["status"]
        for r in await connection.fetch(
            "select id, status from holdfast.tasks union all select id, status from holdfast.history"
            " union all select id, status from holdfast.jobs"
        )
    }
    edges = [
        (str(r["parent_id"]), str(r["child_id"]))
        for r in await connection.fetch("select parent_id, child_id from campaign.edges")
    ]
    submitted = {entry.task for entry in entries if entry.previous_status is None}
    return RunHistory(recorded, pair_executions(recorded), entries, status, submitted, edges, **extra_fields)


def check_i1_acknowledged_jobs_end(history: RunHistory) -> Iterable[Violation]:
    for line in history.recorded:
        status = history.status.get(line.task)
        if line.kind != "acknowledged" or (history.may_lose_acknowledged and status is None):
            continue
        if status not in ENDED_STATUSES:
            yield Violation("I1", line.task, f"acknowledged, and now {history.status.get(line.task, 'gone')}")


def check_i2_executed_tasks_were_submitted(history: RunHistory) -> Iterable[Violation]:
    if history.may_lose_acknowledged:
        return
    for task in history.runs_by_task.keys() - history.submitted:
        yield Violation("I2", task, "was executed and never submitted")


def check_i3_one_outcome(history: RunHistory) -> Iterable[Violation]:
    """Check that each task ends once, and that its newest lease ends it."""
    newest: dict[str, tuple[int, int | None]] = {}
    ended: Counter[str] = Counter()
    for entry in history.ledger:
        if entry.previous_status == "history":
            # A single task moves to the history when it ends; a task of a graph moves later.
            if entry.task not in ended:
                ended[entry.task] += 1
                yield from _check_newest_lease(entry, newest)
            continue
        if entry.status == "running":
            if ended[entry.task]:
                yield Violation("I3", entry.task, f"attempt {entry.attempt} was granted after it had ended")
            newest[entry.task] = (entry.attempt, entry.nonce)
        elif entry.status in ENDED_STATUSES:
            ended[entry.task] += 1
            if ended[entry.task] > 1:
                yield Violation("I3", entry.task, f"ended {ended[entry.task]} times")
            yield from _check_newest_lease(entry, newest)


def _check_newest_lease(entry: LedgerEntry, newest: dict[str, tuple[int, int | None]]) -> Iterable[Violation]:
    granted = newest.get(entry.task)
    if entry.status == "succeeded" and granted != (entry.attempt, entry.nonce):
        yield Violation(
            "I3", entry.task, f"succeeded as {entry.attempt, entry.nonce}, the newest lease is {granted}"
        )


def check_i4_no_overlap(history: RunHistory) -> Iterable[Violation]:
    for task, runs in history.runs_by_task.items():
        for before, after in pairwise(runs):
            if after.began < before.ended:
                late = (before.ended - after.began) / NANOSECONDS_PER_SECOND
                story = f"{after.attempt} began {late:.3f} s before {before.attempt} ended ({before.ending})"
                yield Violation("I4", task, story)


def check_i4_no_attempt_runs_twice(history: RunHistory) -> Iterable[Violation]:
    """No attempt runs twice.

    Executions of frozen processes may overlap; their late outcomes must be refused (I3).
    """
    for task, runs in history.runs_by_task.items():
        # A standby that missed an attempt issues its number again, with another nonce.
        for lease, times in Counter(
            (run.attempt, run.nonce * history.may_lose_acknowledged) for run in runs
        ).items():
            if times > 1:
                yield Violation("I4", task, f"attempt {lease[0]} was run {times} times")


def check_i5_attempt_numbers(history: RunHistory) -> Iterable[Violation]:
    """Check that an attempt runs at most once, and that attempt numbers are not reused."""
    yield from check_i4_no_attempt_runs_twice(history)


def check_i6_children_after_parents(history: RunHistory) -> Iterable[Violation]:
    first_begin = {task: min(run.began for run in runs) for task, runs in history.runs_by_task.items()}
    last_end = {
        task: max((run.ended for run in runs if run.ending == "end"), default=None)
        for task, runs in history.runs_by_task.items()
    }
    for parent, child in history.edges:
        ended, began = last_end.get(parent), first_begin.get(child)
        if began is not None and (ended is None or began < ended):
            yield Violation("I6", child, f"began before its parent {parent} had ended")


def check_i7_one_callback(history: RunHistory) -> Iterable[Violation]:
    """Check that a batch has one callback, which begins after the last job of the batch has ended."""
    ends = {run.task: run.ended for run in history.runs if run.ending == "end"}
    for batch, members in history.batches.items():
        calls = [run for run in history.runs if run.key == batch]
        tasks = {run.task for run in calls}
        if len(tasks) != 1:
            yield Violation("I7", batch, f"called back {len(tasks)} times")
        elif any(member not in ends or ends[member] > calls[0].began for member in members):
            yield Violation("I7", batch, "called back before its last job had ended")


def check_i8_limits(history: RunHistory) -> Iterable[Violation]:
    """Check that no key exceeds its limit, at every start and end of an execution."""
    for key, limit in history.limits.items():
        marks = sorted(
            (moment, change)
            for run in history.runs
            if run.key == key
            for moment, change in ((run.began, 1), (run.ended, -1))
        )
        running = 0
        for _, change in marks:
            running += change
            if running > limit:
                yield Violation("I8", key, f"{running} ran at once, the limit is {limit}")
                break


def check_i9_one_job_per_tick(history: RunHistory) -> Iterable[Violation]:
    """Check that no tick of a schedule has two jobs, and that catching up skips no tick."""
    times: dict[str, list[datetime]] = defaultdict(list)
    for (name, at), jobs in history.ticks.items():
        times[name].append(datetime.fromisoformat(at))
        if jobs != 1:
            yield Violation("I9", name, f"{jobs} jobs for {at}")
    for name, ticks in times.items():
        span = (max(ticks) - min(ticks)).total_seconds() + 1
        if name.startswith("catch_up") and len(ticks) != span:
            yield Violation("I9", name, f"{len(ticks)} ticks of every second in {span:.0f} s")


def check_i11_quotas(history: RunHistory) -> Iterable[Violation]:
    for owner, (allowed, used) in history.quotas.items():
        if used > allowed:
            yield Violation("I11", owner, f"{used} of {allowed}")


def check_i10_cancel_result_is_final(history: RunHistory) -> Iterable[Violation]:
    """Check that the status that a cancel returned is the final status."""
    for line in history.recorded:
        if line.kind == "cancel-answer" and history.status.get(line.task) != line.note:
            yield Violation(
                "I10",
                line.task,
                f"the cancel returned {line.note}, the status is {history.status.get(line.task)}",
            )


def iterate_takeovers(history: RunHistory) -> Iterable[tuple[str, float]]:
    """Yield each task whose process was killed, with the seconds until another worker could claim it."""
    entries_by_task: dict[str, list[LedgerEntry]] = defaultdict(list)
    for entry in history.ledger:
        entries_by_task[entry.task].append(entry)
    for run in history.runs:
        if run.ending != "death":
            continue
        after = (
            e
            for e in entries_by_task[run.task]
            if e.at > run.began and (e.status, e.attempt) != ("running", run.attempt)
        )
        freed = next(after, None)
        yield run.task, (freed.at - run.ended) / NANOSECONDS_PER_SECOND if freed else 0.0


def check_i12_takeover_in_time(history: RunHistory) -> Iterable[Violation]:
    """Check that a task of a killed worker can be claimed again within its lease plus the slack."""
    for task, took in iterate_takeovers(history):
        if took > history.lease_s + history.slack_s:
            yield Violation("I12", task, f"claimable after {took:.2f} s, the lease is {history.lease_s} s")


def list_restart_seconds(history: RunHistory) -> list[float]:
    """Return, for each execution that a death cut off, the seconds until the next one began, sorted."""
    return sorted(seconds for seconds, _ in _iterate_restarts(history))


def _iterate_restarts(history: RunHistory) -> Iterable[tuple[float, bool]]:
    """Yield the seconds from each death to the next beginning, and whether another worker died in between.

    The other worker had claimed the task and died before it began: two faults in a row hit the task.
    """
    claims_by_task: dict[str, list[int]] = defaultdict(list)
    for entry in history.ledger:
        if entry.status == "running":
            claims_by_task[entry.task].append(entry.at)
    for task, runs in history.runs_by_task.items():
        for before, after in pairwise(runs):
            if before.ending == "death":
                claims = sum(before.ended < at <= after.began for at in claims_by_task[task])
                yield (after.began - before.ended) / NANOSECONDS_PER_SECOND, claims > 1


def _describe_slowest_restart(history: RunHistory) -> str:
    """Return the ledger of the slowest restart: statuses, attempts and seconds after the death."""
    before, after = max(
        ((a, b) for runs in history.runs_by_task.values() for a, b in pairwise(runs) if a.ending == "death"),
        key=lambda pair: pair[1].began - pair[0].ended,
    )
    entries = [
        f"{entry.status} {entry.attempt} at {(entry.at - before.ended) / NANOSECONDS_PER_SECOND:.2f}"
        for entry in history.ledger
        if entry.task == before.task and before.began <= entry.at <= after.began
    ]
    began_s = (after.began - before.ended) / NANOSECONDS_PER_SECOND
    return f"task {before.task}: {', '.join(entries)}, began at {began_s:.2f}"


def get_quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def check_restart_times(history: RunHistory) -> Iterable[Violation]:
    """Check that half of the cut-off executions begin again within the lease + 0.5 s, 99 % within + 1.5 s."""
    seconds = list_restart_seconds(history)
    if not seconds or math.isinf(history.slack_s):
        return
    for share, slack_s in ((0.5, 0.5), (0.99, 1.5)):
        took = get_quantile(seconds, share)
        if took > history.lease_s + slack_s:
            story = _describe_slowest_restart(history)
            yield Violation(
                "I12", f"{share:.0%} of restarts", f"began again after {took:.2f} s; slowest: {story}"
            )


def check_all_succeeded(history: RunHistory) -> Iterable[Violation]:
    """Check that no task failed: every task of these runs is healthy."""
    for task in history.submitted:
        if history.status.get(task) != "succeeded":
            yield Violation("I13", task, f"a healthy task, and now {history.status.get(task, 'gone')}")


Rule = Callable[[RunHistory], Iterable[Violation]]
COMMON_RULES: tuple[Rule, ...] = (
    check_i1_acknowledged_jobs_end,
    check_i2_executed_tasks_were_submitted,
    check_i3_one_outcome,
    check_i5_attempt_numbers,
    check_i10_cancel_result_is_final,
)


def find_violations(history: RunHistory, *more: Rule) -> list[Violation]:
    return [broken for rule in (*COMMON_RULES, *more) for broken in rule(history)]


def summarize_history(history: RunHistory) -> dict[str, object]:
    how = Counter(run.ending for run in history.runs)
    took = sorted(seconds for _, seconds in iterate_takeovers(history))
    late = sum(seconds > history.lease_s + 1.0 for seconds in took)
    return {
        "tasks": len(history.submitted),
        "executions": len(history.runs),
        "repeated": len(history.runs) - len(history.runs_by_task),
        "cut by death": how["death"],
        "stopped": how["stop"],
        "ledger": len(history.ledger),
        "taken over": {"slowest s": round(took[-1], 2), "later than lease + 1 s": late} if took else {},
        "began again": _summarize_restarts(history),
        "ended as": dict(Counter(history.status.get(task, "gone") for task in history.submitted)),
    }


def _summarize_restarts(history: RunHistory) -> dict[str, object]:
    restarts = list(_iterate_restarts(history))
    if not restarts:
        return {}
    one_fault = sorted(seconds for seconds, two_faults in restarts if not two_faults)
    return {
        **_get_quantiles(sorted(seconds for seconds, _ in restarts)),
        "hit by two faults in a row": len(restarts) - len(one_fault),
        "hit by one fault": _get_quantiles(one_fault),
    }


def _get_quantiles(ordered: list[float]) -> dict[str, float]:
    quantiles = {"median s": 0.5, "p99 s": 0.99, "slowest s": 1.0}
    return {name: round(get_quantile(ordered, share), 2) for name, share in quantiles.items() if ordered}
