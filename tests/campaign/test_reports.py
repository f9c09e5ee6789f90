"""The pages that benchmarks and campaigns write: what is in them, and that nothing is made nicer."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench.peers import memory, pictures, results
from bench.peers import report as peers
from bench.peers.peers import PEERS
from bench.peers.rows import FINISHED, WAITING, Rows
from campaign import report as campaign

RESULTS: dict[str, results.Measurements] = {
    "holdfast": {"drain, 1 process": 100.0, "drain, 2 processes": 150.0, "wake-up p50 ms": 4.0},
    "dbos": {"drain, 1 process": 200.0, "drain, 2 processes": float("nan"), "wake-up p50 ms": 8.0},
}


def test_the_table_says_where_we_lose() -> None:
    ratios = peers.table(RESULTS).splitlines()[-1]
    assert ratios == "| **Holdfast against the best other job queue** | 0.50 | - | 2.00 |"
    assert "| dbos | 200 | - | 8.0 |" in peers.table(RESULTS)


def test_the_picture_is_well_formed() -> None:
    drawn = ET.fromstring(pictures.bars(RESULTS))
    assert len([each for each in drawn.iter() if each.tag.endswith("rect")]) == 1 + 2 * len(RESULTS)


STAMP = results.Stamp("2026-01-02 03:04 UTC", "abc1234", 0.5, "Linux, 2 cores", "PostgreSQL 18.1")


def outcome(
    measurements: results.Measurements, lost: str = "", stamp: results.Stamp = STAMP
) -> results.Outcome:
    return results.Outcome(stamp, measurements, lost, seconds=3.0)


def measured() -> results.Results:
    return {
        "backlog": {
            "holdfast": outcome({"usual drain": 10.0, "drain, 1,000,000 waiting": 9.0}),
            "dramatiq": outcome({}, "would take 200 s"),
        },
        "growth": {"holdfast": outcome({"1,000": 12.0, "10,000": 11.0}), "dramatiq": outcome({"1,000": 3.0})},
    }


def test_words_stand_in_for_numbers_and_count_for_nothing() -> None:
    output = peers.table(
        {"holdfast": {"drain": 5.0, "x MB": 4.0}, "dbos": {"drain": "none kept", "x MB": 2.0}}
    )
    assert "| dbos | none kept | 2.0 |" in output
    assert output.splitlines()[-1].endswith("| - | 0.50 |")


def test_nothing_and_less_than_nothing_have_no_ratio() -> None:
    output = peers.table(
        {"holdfast": {"growth MB": -1.0}, "dbos": {"growth MB": 2.0}, "awa": {"growth MB": 0.0}}
    )
    assert output.splitlines()[-1].endswith("| - |")
    assert peers.shown(-0.001) == "0.00"


def test_the_page_has_each_part_with_its_date_and_what_is_missing() -> None:
    page = peers.page(measured(), {"dramatiq": "2.2.1"})
    assert page.count(str(STAMP)) == 2
    assert "Not measured:\n\n- dramatiq: would take 200 s" in page
    assert "| holdfast | 12.0 | 11.0 | 9.0 |" in page  # growth ends with the long queue
    assert "| dramatiq | - | - |" in page
    assert "- dramatiq 2.2.1: 6,000 jobs a drain" in page
    assert peers.TEXTS["memory"][0] not in page


def test_peers_measured_in_runs_of_their_own_are_named() -> None:
    known = measured()
    later = results.Stamp("2026-02-02 03:04 UTC", "def5678", 0.1, "Linux, 2 cores", "PostgreSQL 18.1")
    results.put(known, "backlog", "dramatiq", outcome({"usual drain": 4.0}, stamp=later))
    section = peers.section("backlog", known)
    assert f"- holdfast: {STAMP}\n- dramatiq: {later}" in section
    assert "Not measured" not in section


def test_results_are_merged_and_survive_the_file(tmp_path: Path) -> None:
    place, known = tmp_path / "deep" / "results.json", measured()
    assert results.load(place) == {}
    results.put(known, "growth", "pgmq", outcome({"1,000": float("inf"), "10,000": "none kept"}))
    results.put(known, "memory", "pgmq", outcome({"idle MB": 20.5}))
    results.save(place, known)
    assert results.load(place) == known
    assert list(known["growth"]) == ["holdfast", "pgmq", "dramatiq"]
    assert [each.name for each in place.parent.iterdir()] == ["results.json"]


def test_the_lines_are_well_formed_and_names_do_not_overlap() -> None:
    same: dict[str, results.Measurements] = {name: {"1,000": 5_000.0, "1,000,000": 20.0} for name in PEERS}
    drawn = ET.fromstring(pictures.lines({**same, "dbos": {"1,000": "none"}}))
    kinds = [each.tag.rpartition("}")[2] for each in drawn.iter()]
    assert kinds.count("polyline") == len(PEERS) - 1
    names = [each for each in drawn.iter() if (each.text or "").partition(" ")[0] in same]
    heights = sorted(float(each.attrib["y"]) for each in names)
    assert all(below - above > 14.9 for above, below in pairwise(heights))
    assert heights[-1] <= pictures.TOP + pictures.HEIGHT + 5
    assert "polyline" not in pictures.lines({})


def test_copies_differ_in_their_numbers_and_times_only() -> None:
    rows = Rows("t", "true", uuids=("id",), numbers=("pos",), times=("at", "ms"), options=("serial",))
    types = [("id", "uuid"), ("pos", "bigint"), ("at", "timestamptz"), ("ms", "bigint"), ("args", "jsonb")]
    sql = rows.insert([*types, ("serial", "bigint")], "source_0")
    assert sql.startswith("insert into t (id, pos, at, ms, args) ")
    assert "s.pos + n * $4" in sql
    assert "s.ms - ($3::bigint - n)" in sql
    assert " s.args from " in sql
    assert rows.expression("id", "uuid") == "cast(left(s.id::text, 24) || lpad(to_hex(n), 12, '0') as uuid)"


@pytest.mark.parametrize("peer_rows", [WAITING, FINISHED])
def test_only_peers_have_rows(peer_rows: dict[str, Any]) -> None:
    assert set(peer_rows) <= set(PEERS)
    assert {name for name, entry in PEERS.items() if not entry.redis} == set(WAITING)


def test_memory_is_that_of_a_process_and_all_that_descend_from_it() -> None:
    assert memory.family(2, {1: 0, 2: 1, 3: 2, 4: 3, 5: 1}) == {2, 3, 4}
    output = "55-7f [rollup]\nRss: 900 kB\nPss: 300 kB\nPss_Anon: 200 kB\nAnonymous: 400 kB\n"
    assert memory.resident(output) == 700 * 1024


def played(**more: Any) -> dict[str, Any]:
    facts = {"run": "kills", "tasks": 10, "executions": 12, "repeated": 2, "seconds": 60, "workers killed": 5}
    return {**facts, "broken": [], "ended as": {"succeeded": 9, "failed": 1}, "taken over": {}, **more}


def test_runs_of_one_name_are_added_up_with_what_they_broke() -> None:
    over = {"slowest s": 2.5, "later than lease + 1 s": 3}
    rows = campaign.build_rows([played(), played(broken=["I1 ..."], **{"taken over": over})])
    assert rows == ["| kills | 10 workers killed | 20 | 24 | 4 | 2 | 2.5 s, 3 late | 1 | 2 |"]
