"""The pages that benchmarks and campaigns write: what is in them, and that nothing is made nicer."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

from bench.peers import report as peers
from campaign import report as campaign

RESULTS = {
    "holdfast": {"drain, 1 process": 100.0, "drain, 2 processes": 150.0, "wake-up p50 ms": 4.0},
    "dbos": {"drain, 1 process": 200.0, "drain, 2 processes": float("nan"), "wake-up p50 ms": 8.0},
}


def test_the_table_says_where_we_lose() -> None:
    ratios = peers.table(RESULTS).splitlines()[-1]
    assert ratios == "| **Holdfast against the best other job queue** | 0.50 | - | 2.00 |"
    assert "| dbos | 200 | - | 8.0 |" in peers.table(RESULTS)


def test_the_picture_is_well_formed() -> None:
    drawn = ET.fromstring(peers.picture(RESULTS))
    assert len([each for each in drawn.iter() if each.tag.endswith("rect")]) == 1 + 2 * len(RESULTS)


def played(**more: Any) -> dict[str, Any]:
    told = {"run": "kills", "tasks": 10, "executions": 12, "repeated": 2, "seconds": 60, "workers killed": 5}
    return {**told, "broken": [], "ended as": {"succeeded": 9, "failed": 1}, "taken over": {}, **more}


def test_runs_of_one_name_are_added_up_with_what_they_broke() -> None:
    over = {"most s": 2.5, "later than lease + 1 s": 3}
    rows = campaign.rows([played(), played(broken=["I1 ..."], **{"taken over": over})])
    assert rows == ["| kills | 10 workers killed | 20 | 24 | 4 | 2 | 2.5 s, 3 late | 1 | 2 |"]
