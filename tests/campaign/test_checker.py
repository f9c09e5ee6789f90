"""The checker finds every violation in broken histories, and none in a good one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from campaign import checker
from campaign.checker import LedgerEntry, Rule, RunHistory
from campaign.records import RecordLine, pair_executions

S = 1_000_000_000


def build_history(*recorded: RecordLine, **other: object) -> RunHistory:
    ledger = [
        LedgerEntry(1, "t", None, "ready", 0, None, 1),
        LedgerEntry(2, "t", "ready", "running", 1, 11, 2),
        LedgerEntry(3, "t", "history", "succeeded", 1, 11, 3),
    ]
    fields = {"ledger": ledger, "status": {"t": "succeeded"}, "submitted": {"t"}, **other}
    return RunHistory(list(recorded), pair_executions(list(recorded)), **fields)  # type: ignore[arg-type]


GOOD = build_history(
    RecordLine(0, 1, "acknowledged", "t"),
    RecordLine(1 * S, 2, "begin", "t", 1, "k"),
    RecordLine(2 * S, 2, "end", "t", 1),
)
ALL: tuple[Rule, ...] = (
    checker.i4_no_overlap,
    checker.i6_children_after_parents,
    checker.i7_one_callback,
    checker.i8_limits,
    checker.i9_one_job_a_tick,
    checker.i11_quotas,
    checker.i12_taken_over_in_time,
)


def test_a_good_history_has_no_fault() -> None:
    assert checker.find_violations(replace(GOOD, limits={"k": 1}), *ALL) == []


def twice(second_begins: float, first_ends: str = "end") -> RunHistory:
    freed = int((second_begins - 0.1) * S)
    first_end = (
        RecordLine(3 * S, 2, "end", "t", 1)
        if first_ends == "end"
        else RecordLine(3 * S, 9, "killed", note="2")
    )
    return build_history(
        RecordLine(1 * S, 2, "begin", "t", 1, "k"),
        first_end,
        RecordLine(int(second_begins * S), 4, "begin", "t", 2, "k"),
        RecordLine(20 * S, 4, "end", "t", 2),
        ledger=[
            LedgerEntry(1, "t", None, "ready", 0, None, 0),
            LedgerEntry(2, "t", "ready", "running", 1, 11, S // 2),
            LedgerEntry(3, "t", "running", "ready", 1, None, freed),
            LedgerEntry(4, "t", "ready", "running", 2, 12, freed),
            LedgerEntry(5, "t", "history", "succeeded", 2, 12, 20 * S),
        ],
    )


@pytest.mark.parametrize(
    ("rule", "history"),
    [
        ("I1", replace(GOOD, status={"t": "running"})),
        ("I1", replace(GOOD, status={})),
        ("I2", replace(GOOD, submitted=set())),
        (
            "I3",
            replace(GOOD, ledger=[*GOOD.ledger[:2], LedgerEntry(3, "t", "history", "succeeded", 1, 99, 3)]),
        ),
        (
            "I3",
            replace(
                GOOD,
                ledger=[
                    *GOOD.ledger[:2],
                    LedgerEntry(3, "t", "running", "succeeded", 1, 11, 3),
                    LedgerEntry(4, "t", "succeeded", "failed", 1, 11, 4),
                ],
            ),
        ),
        ("I3", replace(GOOD, ledger=[*GOOD.ledger, LedgerEntry(4, "t", "ready", "running", 2, 12, 4)])),
        ("I4", twice(2.5)),
        ("I4", twice(2.5, "death")),
        ("I6", replace(GOOD, edges=[("p", "t")])),
        ("I7", replace(GOOD, batches={"b": []})),
        ("I7", replace(GOOD, batches={"k": ["a job that never ended"]})),
        ("I8", replace(twice(2.5), limits={"k": 1})),
        ("I9", replace(GOOD, ticks={("s", "2026-01-01T00:00:00Z"): 2})),
        ("I9", replace(GOOD, ticks={("catch_up", f"2026-01-01T00:00:{at}Z"): 1 for at in ("00", "02")})),
        ("I11", replace(GOOD, quotas={"ann": (10, 11)})),
        (
            "I10",
            replace(
                GOOD, recorded=[*GOOD.recorded, RecordLine(9, 1, "cancel-answer", "t", note="cancelled")]
            ),
        ),
        ("I12", twice(9.0, "death")),
    ],
)
def test_each_fault_is_found(rule: str, history: RunHistory) -> None:
    assert rule in {violation.rule for violation in checker.find_violations(history, *ALL)}


def test_a_batch_called_back_twice_is_found() -> None:
    doubled = build_history(
        RecordLine(1, 2, "begin", "t", 1, "b"), RecordLine(2, 3, "begin", "u", 1, "b"), batches={"b": []}
    )
    assert "I7" in {violation.rule for violation in checker.find_violations(doubled, *ALL)}


def test_an_attempt_that_is_run_twice_is_found() -> None:
    doubled = build_history(RecordLine(1, 2, "begin", "t", 1), RecordLine(2, 3, "begin", "t", 1))
    assert "I4" in {violation.rule for violation in checker.find_violations(doubled)}
