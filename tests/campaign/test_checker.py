"""The judge must find what is wrong in histories that were made wrong by hand, and nothing in a good one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from campaign import checker
from campaign.checker import Entry, History, Rule
from campaign.records import Line, executions

S = 1_000_000_000


def story(*recorded: Line, **other: object) -> History:
    ledger = [
        Entry(1, "t", None, "ready", 0, None, 1),
        Entry(2, "t", "ready", "running", 1, 11, 2),
        Entry(3, "t", "history", "succeeded", 1, 11, 3),
    ]
    known = {"ledger": ledger, "status": {"t": "succeeded"}, "submitted": {"t"}, **other}
    return History(list(recorded), executions(list(recorded)), **known)  # type: ignore[arg-type]


GOOD = story(
    Line(0, 1, "acknowledged", "t"), Line(1 * S, 2, "begin", "t", 1, "k"), Line(2 * S, 2, "end", "t", 1)
)
ALL: tuple[Rule, ...] = (
    checker.i4_no_overlap,
    checker.i6_children_after_parents,
    checker.i7_one_callback,
    checker.i8_limits,
    checker.i9_one_job_a_tick,
    checker.i11_quotas,
    checker.i12_taken_over,
)


def test_a_good_history_has_no_fault() -> None:
    assert checker.judge(replace(GOOD, limits={"k": 1}), *ALL) == []


def twice(second_begins: float, first_ends: str = "end") -> History:
    freed = int((second_begins - 0.1) * S)
    first_end = Line(3 * S, 2, "end", "t", 1) if first_ends == "end" else Line(3 * S, 9, "killed", note="2")
    return story(
        Line(1 * S, 2, "begin", "t", 1, "k"), first_end,
        Line(int(second_begins * S), 4, "begin", "t", 2, "k"), Line(20 * S, 4, "end", "t", 2),
        ledger=[
            Entry(1, "t", None, "ready", 0, None, 0), Entry(2, "t", "ready", "running", 1, 11, S // 2),
            Entry(3, "t", "running", "ready", 1, None, freed),
            Entry(4, "t", "ready", "running", 2, 12, freed),
            Entry(5, "t", "history", "succeeded", 2, 12, 20 * S),
        ],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "history"),
    [
        ("I1", replace(GOOD, status={"t": "running"})),
        ("I1", replace(GOOD, status={})),
        ("I2", replace(GOOD, submitted=set())),
        ("I3", replace(GOOD, ledger=[*GOOD.ledger[:2], Entry(3, "t", "history", "succeeded", 1, 99, 3)])),
        ("I3", replace(GOOD, ledger=[*GOOD.ledger[:2], Entry(3, "t", "running", "succeeded", 1, 11, 3),
                                     Entry(4, "t", "succeeded", "failed", 1, 11, 4)])),
        ("I3", replace(GOOD, ledger=[*GOOD.ledger, Entry(4, "t", "ready", "running", 2, 12, 4)])),
        ("I4", twice(2.5)),
        ("I4", twice(2.5, "death")),
        ("I6", replace(GOOD, edges=[("p", "t")])),
        ("I7", replace(GOOD, batches={"b": []})),
        ("I7", replace(GOOD, batches={"k": ["somebody who never ended"]})),
        ("I8", replace(twice(2.5), limits={"k": 1})),
        ("I9", replace(GOOD, ticks={("s", "2026-01-01T00:00:00Z"): 2})),
        ("I9", replace(GOOD, ticks={("catch_up", f"2026-01-01T00:00:{at}Z"): 1 for at in ("00", "02")})),
        ("I11", replace(GOOD, quotas={"ann": (10, 11)})),
        ("I10", replace(GOOD, recorded=[*GOOD.recorded, Line(9, 1, "told", "t", note="cancelled")])),
        ("I12", twice(9.0, "death")),
    ],
)  # fmt: skip
def test_each_fault_is_found(rule: str, history: History) -> None:
    assert rule in {broken.rule for broken in checker.judge(history, *ALL)}


def test_a_batch_called_back_twice_is_found() -> None:
    doubled = story(Line(1, 2, "begin", "t", 1, "b"), Line(2, 3, "begin", "u", 1, "b"), batches={"b": []})
    assert "I7" in {broken.rule for broken in checker.judge(doubled, *ALL)}


def test_an_attempt_that_is_run_twice_is_found() -> None:
    doubled = story(Line(1, 2, "begin", "t", 1), Line(2, 3, "begin", "t", 1))
    assert "I4" in {broken.rule for broken in checker.judge(doubled)}
