"""The judge. Reads what was recorded and what the database says, and names every broken promise.

I1   what was acknowledged has ended                    I7   one callback a batch, after its last job
I2   what was executed had been submitted               I8   no more at once under a key than its limit
I3   one accepted outcome, of the newest lease          I9   one job per schedule and tick
I4   executions of a task do not overlap                I10  what the caller was told is what is true
I5   attempts stay within the policy                    I11  quotas were never exceeded
I6   a child begins after its parents' outcomes, once   I12  a dead worker's task is taken over in time

A run names the invariants that apply to it; the rules are the same for all runs.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from campaign.records import Execution, Line, executions, lines
from holdfast.engine.connection import Connection

ENDED = {"succeeded", "failed", "cancelled", "partial"}
NANO = 1_000_000_000


@dataclass(frozen=True)
class Broken:
    rule: str
    subject: str
    story: str

    def __str__(self) -> str:
        return f"{self.rule} {self.subject}: {self.story}"


@dataclass(frozen=True)
class Entry:
    """A change of state, from the ledger."""

    id: int
    task: str
    was: str | None
    is_now: str
    attempt: int
    nonce: int | None
    at: int  # nanoseconds of the same clock as the records


@dataclass
class History:
    """All there is to know about a run."""

    recorded: list[Line]
    runs: list[Execution]
    ledger: list[Entry]
    status: dict[str, str]
    submitted: set[str]
    edges: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    limits: dict[str, int] = field(default_factory=dict[str, int])
    lease_s: float = 2.0
    slack_s: float = 1.0
    forgets: bool = False
    batches: dict[str, list[str]] = field(default_factory=dict[str, list[str]])  # callback key: its members
    ticks: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    quotas: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])  # allowed, used

    @property
    def by_task(self) -> dict[str, list[Execution]]:
        found: dict[str, list[Execution]] = defaultdict(list)
        for run in self.runs:
            found[run.task].append(run)
        return found


async def read(folder: Path, connection: Connection, **known: Any) -> History:
    recorded = sorted(lines(folder), key=lambda line: line.at)
    ahead = time.time_ns() - time.monotonic_ns()
    entries = [
        Entry(r["id"], str(r["task"]), r["was"], r["is_now"], r["attempt"], r["nonce"], int(r["at"]) - ahead)
        for r in await connection.fetch(
            "select id, task, was, is_now, attempt, nonce, (extract(epoch from at) * 1e9)::bigint as at"
            " from campaign.ledger order by id"
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
    submitted = {entry.task for entry in entries if entry.was is None}
    return History(recorded, executions(recorded), entries, status, submitted, edges, **known)


def i1_acknowledged_ends(history: History) -> Iterable[Broken]:
    for line in history.recorded:
        found = history.status.get(line.task)
        if line.what != "acknowledged" or (history.forgets and found is None):
            continue
        if found not in ENDED:
            yield Broken("I1", line.task, f"acknowledged, and now {history.status.get(line.task, 'gone')}")


def i2_executed_was_submitted(history: History) -> Iterable[Broken]:
    if history.forgets:
        return
    for task in history.by_task.keys() - history.submitted:
        yield Broken("I2", task, "was executed and never submitted")


def i3_one_outcome(history: History) -> Iterable[Broken]:
    """Each task ends once; and what ends it is the lease that was granted last."""
    newest: dict[str, tuple[int, int | None]] = {}
    ended: Counter[str] = Counter()
    for entry in history.ledger:
        if entry.was == "history":
            # A task that was alone moves to the history in its last step; one of a graph is moved later.
            if entry.task not in ended:
                ended[entry.task] += 1
                yield from _of_newest(entry, newest)
            continue
        if entry.is_now == "running":
            if ended[entry.task]:
                yield Broken("I3", entry.task, f"attempt {entry.attempt} was granted after it had ended")
            newest[entry.task] = (entry.attempt, entry.nonce)
        elif entry.is_now in ENDED:
            ended[entry.task] += 1
            if ended[entry.task] > 1:
                yield Broken("I3", entry.task, f"ended {ended[entry.task]} times")
            yield from _of_newest(entry, newest)


def _of_newest(entry: Entry, newest: dict[str, tuple[int, int | None]]) -> Iterable[Broken]:
    granted = newest.get(entry.task)
    if entry.is_now == "succeeded" and granted != (entry.attempt, entry.nonce):
        yield Broken(
            "I3", entry.task, f"succeeded as {entry.attempt, entry.nonce}, granted last was {granted}"
        )


def i4_no_overlap(history: History) -> Iterable[Broken]:
    for task, runs in history.by_task.items():
        for before, after in pairwise(runs):
            if after.began < before.ended:
                late = (before.ended - after.began) / NANO
                story = f"{after.attempt} began {late:.3f} s before {before.attempt} ended ({before.how})"
                yield Broken("I4", task, story)


def i4_after_a_freeze(history: History) -> Iterable[Broken]:
    """Where processes were stopped, what they ran may overlap; what they say afterwards must not count (I3),
    and nobody runs the same attempt twice."""
    for task, runs in history.by_task.items():
        # A standby that had not heard of an attempt gives its number out again, with another nonce.
        for lease, times in Counter((run.attempt, run.nonce * history.forgets) for run in runs).items():
            if times > 1:
                yield Broken("I4", task, f"attempt {lease[0]} was run {times} times")


def i5_attempts(history: History) -> Iterable[Broken]:
    """An attempt is run at most once, and attempts are numbered without reuse."""
    yield from i4_after_a_freeze(history)


def i6_children_after_parents(history: History) -> Iterable[Broken]:
    first_begin = {task: min(run.began for run in runs) for task, runs in history.by_task.items()}
    last_end = {
        task: max((run.ended for run in runs if run.how == "end"), default=None)
        for task, runs in history.by_task.items()
    }
    for parent, child in history.edges:
        ended, began = last_end.get(parent), first_begin.get(child)
        if began is not None and (ended is None or began < ended):
            yield Broken("I6", child, f"began before its parent {parent} had ended")


def i7_one_callback(history: History) -> Iterable[Broken]:
    """By one task, however often that was attempted; and not before its last member had ended."""
    ends = {run.task: run.ended for run in history.runs if run.how == "end"}
    for batch, members in history.batches.items():
        calls = [run for run in history.runs if run.key == batch]
        tasks = {run.task for run in calls}
        if len(tasks) != 1:
            yield Broken("I7", batch, f"called back {len(tasks)} times")
        elif any(member not in ends or ends[member] > calls[0].began for member in members):
            yield Broken("I7", batch, "called back before its last job had ended")


def i8_limits(history: History) -> Iterable[Broken]:
    """Sweep over beginnings and ends of each key."""
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
                yield Broken("I8", key, f"{running} ran at once, {limit} may")
                break


def i9_one_job_a_tick(history: History) -> Iterable[Broken]:
    """No time of a schedule has two jobs; and where missed times are caught up with, none is left out."""
    times: dict[str, list[datetime]] = defaultdict(list)
    for (name, at), jobs in history.ticks.items():
        times[name].append(datetime.fromisoformat(at))
        if jobs != 1:
            yield Broken("I9", name, f"{jobs} jobs for {at}")
    for name, found in times.items():
        span = (max(found) - min(found)).total_seconds() + 1
        if name.startswith("catch_up") and len(found) != span:
            yield Broken("I9", name, f"{len(found)} ticks of every second in {span:.0f} s")


def i11_quotas(history: History) -> Iterable[Broken]:
    for owner, (allowed, used) in history.quotas.items():
        if used > allowed:
            yield Broken("I11", owner, f"{used} of {allowed}")


def i10_told_is_true(history: History) -> Iterable[Broken]:
    """Whoever was told that a job is cancelled will never find it otherwise."""
    for line in history.recorded:
        if line.what == "told" and history.status.get(line.task) != line.note:
            yield Broken("I10", line.task, f"told {line.note}, and it is {history.status.get(line.task)}")


def takeovers(history: History) -> Iterable[tuple[str, float]]:
    """Tasks whose process was killed, and the seconds until they were there for others."""
    told: dict[str, list[Entry]] = defaultdict(list)
    for entry in history.ledger:
        told[entry.task].append(entry)
    for run in history.runs:
        if run.how != "death":
            continue
        after = (
            e
            for e in told[run.task]
            if e.at > run.began and (e.is_now, e.attempt) != ("running", run.attempt)
        )
        freed = next(after, None)
        yield run.task, (freed.at - run.ended) / NANO if freed else 0.0


def i12_taken_over(history: History) -> Iterable[Broken]:
    """After a kill the task is there for others within a lease and the slack, as long as somebody looks."""
    for task, took in takeovers(history):
        if took > history.lease_s + history.slack_s:
            yield Broken("I12", task, f"free after {took:.2f} s, the lease is {history.lease_s} s")


Rule = Callable[[History], Iterable[Broken]]
ALWAYS: tuple[Rule, ...] = (
    i1_acknowledged_ends,
    i2_executed_was_submitted,
    i3_one_outcome,
    i5_attempts,
    i10_told_is_true,
)


def judge(history: History, *more: Rule) -> list[Broken]:
    return [broken for rule in (*ALWAYS, *more) for broken in rule(history)]


def summary(history: History) -> dict[str, object]:
    how = Counter(run.how for run in history.runs)
    took = sorted(seconds for _, seconds in takeovers(history))
    late = sum(seconds > history.lease_s + 1.0 for seconds in took)
    return {
        "tasks": len(history.submitted),
        "executions": len(history.runs),
        "repeated": len(history.runs) - len(history.by_task),
        "cut by death": how["death"],
        "stopped": how["stop"],
        "ledger": len(history.ledger),
        "taken over": {"most s": round(took[-1], 2), "later than lease + 1 s": late} if took else {},
        "ended as": dict(Counter(history.status.get(task, "gone") for task in history.submitted)),
    }


def dump(broken: Iterable[Broken]) -> str:
    return msgspec.json.encode([str(b) for b in broken]).decode()
