"""Tests that the checker finds each broken promise, and none in a good history."""

from __future__ import annotations

from dataclasses import replace

import pytest

from campaign import checker
from campaign.checker import LedgerEntry, Rule, RunHistory
from campaign.records import RecordLine, pair_executions

SECOND_NS = 1_000_000_000


def build_history(*recorded: RecordLine, **other: object) -> RunHistory:
    ledger = [
        LedgerEntry(1, "t", None, "ready", 0, None, 1),
        LedgerEntry(2, "t", "ready", "running", 1, 11, 2),
        LedgerEntry(3, "t", "history", "succeeded", 1, 11, 3),
    ]
    fields = {"ledger": ledger, "status": {"t": "succeeded"}, "submitted": {"t"}, **other}
    return RunHistory(list(recorded), pair_executions(list(recorded)), **fields)  # type: ignore[arg-type]


GOOD_HISTORY = build_history(
    RecordLine(0, 1, "acknowledged", "t"),
    RecordLine(1 * SECOND_NS, 2, "begin", "t", 1, "k"),
    RecordLine(2 * SECOND_NS, 2, "end", "t", 1),
)
ALL_RULES: tuple[Rule, ...] = (
    checker.check_i4_no_overlap,
    checker.check_i6_children_after_parents,
    checker.check_i7_one_callback,
    checker.check_i8_limits,
    checker.check_i9_one_job_per_tick,
    checker.check_i11_quotas,
    checker.check_i12_takeover_in_time,
)


def test_good_history_has_no_violation() -> None:
    assert checker.find_violations(replace(GOOD_HISTORY, limits={"k": 1}), *ALL_RULES) == []


def build_two_executions(second_begins: float, first_ends: str = "end") -> RunHistory:
    freed_at = int((second_begins - 0.1) * SECOND_NS)
    first_end = (
        RecordLine(3 * SECOND_NS, 2, "end", "t", 1)
        if first_ends == "end"
        else RecordLine(3 * SECOND_NS, 9, "killed", note="2")
    )
    return build_history(
        RecordLine(1 * SECOND_NS, 2, "begin", "t", 1, "k"),
        first_end,
        RecordLine(int(second_begins * SECOND_NS), 4, "begin", "t", 2, "k"),
        RecordLine(20 * SECOND_NS, 4, "end", "t", 2),
        ledger=[
            LedgerEntry(1, "t", None, "ready", 0, None, 0),
            LedgerEntry(2, "t", "ready", "running", 1, 11, SECOND_NS // 2),
            LedgerEntry(3, "t", "running", "ready", 1, None, freed_at),
            LedgerEntry(4, "t", "ready", "running", 2, 12, freed_at),
            LedgerEntry(5, "t", "history", "succeeded", 2, 12, 20 * SECOND_NS),
        ],
    )


@pytest.mark.parametrize(
    ("rule", "history"),
    [
        ("I1", replace(GOOD_HISTORY, status={"t": "running"})),
        ("I1", replace(GOOD_HISTORY, status={})),
        ("I2", replace(GOOD_HISTORY, submitted=set())),
        (
            "I3",
            replace(
                GOOD_HISTORY,
                ledger=[*GOOD_HISTORY.ledger[:2], LedgerEntry(3, "t", "history", "succeeded", 1, 99, 3)],
            ),
        ),
        (
            "I3",
            replace(
                GOOD_HISTORY,
                ledger=[
                    *GOOD_HISTORY.ledger[:2],
                    LedgerEntry(3, "t", "running", "succeeded", 1, 11, 3),
                    LedgerEntry(4, "t", "succeeded", "failed", 1, 11, 4),
                ],
            ),
        ),
        (
            "I3",
            replace(
                GOOD_HISTORY, ledger=[*GOOD_HISTORY.ledger, LedgerEntry(4, "t", "ready", "running", 2, 12, 4)]
            ),
        ),
        ("I4", build_two_executions(2.5)),
        ("I4", build_two_executions(2.5, "death")),
        ("I6", replace(GOOD_HISTORY, edges=[("p", "t")])),
        ("I7", replace(GOOD_HISTORY, batches={"b": []})),
        ("I7", replace(GOOD_HISTORY, batches={"k": ["a job that never ended"]})),
        ("I8", replace(build_two_executions(2.5), limits={"k": 1})),
        ("I9", replace(GOOD_HISTORY, ticks={("s", "2026-01-01T00:00:00Z"): 2})),
        (
            "I9",
            replace(GOOD_HISTORY, ticks={("catch_up", f"2026-01-01T00:00:{at}Z"): 1 for at in ("00", "02")}),
        ),
        ("I11", replace(GOOD_HISTORY, quotas={"ann": (10, 11)})),
        (
            "I10",
            replace(
                GOOD_HISTORY,
                recorded=[*GOOD_HISTORY.recorded, RecordLine(9, 1, "cancel-answer", "t", note="cancelled")],
            ),
        ),
        ("I12", build_two_executions(9.0, "death")),
    ],
)
def test_checker_finds_each_violation(rule: str, history: RunHistory) -> None:
    assert rule in {violation.rule for violation in checker.find_violations(history, *ALL_RULES)}


def test_checker_finds_two_callbacks_of_a_batch() -> None:
    doubled = build_history(
        RecordLine(1, 2, "begin", "t", 1, "b"), RecordLine(2, 3, "begin", "u", 1, "b"), batches={"b": []}
    )
    assert "I7" in {violation.rule for violation in checker.find_violations(doubled, *ALL_RULES)}


def test_checker_finds_an_attempt_that_ran_twice() -> None:
    doubled = build_history(RecordLine(1, 2, "begin", "t", 1), RecordLine(2, 3, "begin", "t", 1))
    assert "I4" in {violation.rule for violation in checker.find_violations(doubled)}


def test_slow_restarts_are_violations() -> None:
    slow = build_two_executions(3 + 2.0 + 1.6, "death")
    quantiles = [violation.subject for violation in checker.check_restart_times(replace(slow, slack_s=1.0))]
    assert quantiles == ["50% of restarts", "99% of restarts"]
    assert list(checker.check_restart_times(build_two_executions(3 + 2.4, "death"))) == []


def test_restarts_after_two_faults_are_counted_apart() -> None:
    once = build_two_executions(5.0, "death")
    claimed_in_between = LedgerEntry(9, "t", "ready", "running", 2, 12, 4 * SECOND_NS)
    twice = replace(once, ledger=[*once.ledger, claimed_in_between])
    for history, count in ((once, 0), (twice, 1)):
        restarts = checker.summarize_history(history)["began again"]
        assert isinstance(restarts, dict)
        assert restarts["hit by two faults in a row"] == count
        assert restarts["median s"] == 2.0
