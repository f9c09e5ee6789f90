"""Tests of the pages that the benchmarks and the fault campaign write."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench.peers import memory, pictures, readme, results
from bench.peers import report as peers
from bench.peers.peers import PEERS
from bench.peers.rows import FINISHED_ROWS, WAITING_ROWS, RowTemplate
from campaign import report as campaign

RESULTS: dict[str, results.Measurements] = {
    "holdfast": {"drain, 1 process": 100.0, "drain, 2 processes": 150.0, "wake-up p50 ms": 4.0},
    "dbos": {"drain, 1 process": 200.0, "drain, 2 processes": float("nan"), "wake-up p50 ms": 8.0},
}


def test_table_shows_where_holdfast_loses() -> None:
    ratios = peers.format_table(RESULTS).splitlines()[-1]
    assert ratios == "| **Holdfast against the best other job queue** | 0.50 | - | 2.00 |"
    assert "| dbos | 200 | - | 8.0 |" in peers.format_table(RESULTS)


def test_bar_chart_has_two_bars_per_peer() -> None:
    drawn = ET.fromstring(pictures.draw_drain_bars(RESULTS))
    assert len([each for each in drawn.iter() if each.tag.endswith("rect")]) == 1 + 2 * len(RESULTS)


STAMP = results.RunStamp("2026-01-02 03:04 UTC", "abc1234", 0.5, "Linux, 2 cores", "PostgreSQL 18.1")


def build_result(
    measurements: results.Measurements, missing_reason: str = "", stamp: results.RunStamp = STAMP
) -> results.PeerResult:
    return results.PeerResult(stamp, measurements, missing_reason, seconds=3.0)


def build_results() -> results.ResultsByPart:
    return {
        "backlog": {
            "holdfast": build_result({"usual drain": 10.0, "drain, 1,000,000 waiting": 9.0}),
            "dramatiq": build_result({}, "would take 200 s"),
        },
        "growth": {
            "holdfast": build_result({"1,000": 12.0, "10,000": 11.0}),
            "dramatiq": build_result({"1,000": 3.0}),
        },
    }


def test_text_measurements_have_no_ratio() -> None:
    output = peers.format_table(
        {"holdfast": {"drain": 5.0, "x MB": 4.0}, "dbos": {"drain": "none kept", "x MB": 2.0}}
    )
    assert "| dbos | none kept | 2.0 |" in output
    assert output.splitlines()[-1].endswith("| - | 0.50 |")


def test_zero_and_negative_values_have_no_ratio() -> None:
    output = peers.format_table(
        {"holdfast": {"growth MB": -1.0}, "dbos": {"growth MB": 2.0}, "awa": {"growth MB": 0.0}}
    )
    assert output.splitlines()[-1].endswith("| - |")
    assert peers.format_value(-0.001) == "0.00"


def test_page_shows_date_and_missing_measurements_of_each_part() -> None:
    page = peers.build_page(build_results(), {"dramatiq": "2.2.1"})
    assert page.count(str(STAMP)) == 2
    assert "Not measured:\n\n- dramatiq: would take 200 s" in page
    assert "| holdfast | 12.0 | 11.0 | 9.0 |" in page  # growth ends with the long queue
    assert "| dramatiq | - | - |" in page
    assert "- dramatiq 2.2.1: 6,000 jobs a drain" in page
    assert peers.PART_TEXTS["memory"][0] not in page


def test_peers_measured_in_another_run_are_listed_by_name() -> None:
    stored = build_results()
    later = results.RunStamp("2026-02-02 03:04 UTC", "def5678", 0.1, "Linux, 2 cores", "PostgreSQL 18.1")
    results.replace_result(stored, "backlog", "dramatiq", build_result({"usual drain": 4.0}, stamp=later))
    section = peers.format_section("backlog", stored)
    assert f"- holdfast: {STAMP}\n- dramatiq: {later}" in section
    assert "Not measured" not in section


def test_stored_results_load_unchanged(tmp_path: Path) -> None:
    path, stored = tmp_path / "deep" / "results.json", build_results()
    assert results.load_results(path) == {}
    results.replace_result(
        stored, "growth", "pgmq", build_result({"1,000": float("inf"), "10,000": "none kept"})
    )
    results.replace_result(stored, "memory", "pgmq", build_result({"idle MB": 20.5}))
    results.save_results(path, stored)
    assert results.load_results(path) == stored
    assert list(stored["growth"]) == ["holdfast", "pgmq", "dramatiq"]
    assert [each.name for each in path.parent.iterdir()] == ["results.json"]


def test_growth_chart_labels_do_not_overlap() -> None:
    same: dict[str, results.Measurements] = {name: {"1,000": 5_000.0, "1,000,000": 20.0} for name in PEERS}
    drawn = ET.fromstring(pictures.draw_growth_lines({**same, "dbos": {"1,000": "none"}}))
    kinds = [each.tag.rpartition("}")[2] for each in drawn.iter()]
    assert kinds.count("polyline") == len(PEERS) - 1
    names = [each for each in drawn.iter() if (each.text or "").partition(" ")[0] in same]
    heights = sorted(float(each.attrib["y"]) for each in names)
    assert all(below - above > 14.9 for above, below in pairwise(heights))
    assert heights[-1] <= pictures.PLOT_TOP + pictures.PLOT_HEIGHT + 5
    assert "polyline" not in pictures.draw_growth_lines({})


def test_copied_rows_differ_only_in_ids_numbers_and_times() -> None:
    template = RowTemplate(
        "t", "true", uuids=("id",), numbers=("pos",), times=("at", "ms"), defaults=("serial",)
    )
    types = [("id", "uuid"), ("pos", "bigint"), ("at", "timestamptz"), ("ms", "bigint"), ("args", "jsonb")]
    sql = template.build_insert([*types, ("serial", "bigint")], "source_0")
    assert sql.startswith("insert into t (id, pos, at, ms, args) ")
    assert "s.pos + n * $4" in sql
    assert "s.ms - ($3::bigint - n)" in sql
    assert " s.args from " in sql
    assert (
        template.build_expression("id", "uuid")
        == "cast(left(s.id::text, 24) || lpad(to_hex(n), 12, '0') as uuid)"
    )


@pytest.mark.parametrize("peer_rows", [WAITING_ROWS, FINISHED_ROWS])
def test_every_postgresql_peer_has_row_templates(peer_rows: dict[str, Any]) -> None:
    assert set(peer_rows) <= set(PEERS)
    assert {name for name, peer in PEERS.items() if not peer.redis} == set(WAITING_ROWS)


def test_memory_includes_child_processes() -> None:
    assert memory.find_process_tree(2, {1: 0, 2: 1, 3: 2, 4: 3, 5: 1}) == {2, 3, 4}
    output = "55-7f [rollup]\nRss: 900 kB\nPss: 300 kB\nPss_Anon: 200 kB\nAnonymous: 400 kB\n"
    assert memory.parse_resident_bytes(output) == 700 * 1024


def build_run_result(**more: Any) -> dict[str, Any]:
    facts = {"run": "kills", "tasks": 10, "executions": 12, "repeated": 2, "seconds": 60, "workers killed": 5}
    return {**facts, "broken": [], "ended as": {"succeeded": 9, "failed": 1}, "taken over": {}, **more}


def test_report_adds_up_runs_of_the_same_name() -> None:
    over = {"slowest s": 2.5, "later than lease + 1 s": 3}
    rows = campaign.build_table_rows(
        [build_run_result(), build_run_result(broken=["I1 ..."], **{"taken over": over})]
    )
    assert rows == ["| kills | 10 workers killed | 20 | 24 | 4 | 2 | 2.5 s, 3 late | 1 | 2 |"]


def test_readme_table_has_the_spread_and_marks_the_best(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"before\n\n{readme.BEGIN_LINE}\nobsolete line\n{readme.END_LINE}\n\nafter\n")
    column = "drain, 1 process"
    measured = {
        "holdfast": build_result({column: 1000.0, f"{column}, from to": "900 to 1,100"}),
        "pgmq": build_result({column: 2000.0, f"{column}, from to": "1,500 to 2,500"}),
        "dramatiq": build_result({}),
    }
    readme.write_readme(page, measured)
    readme.write_readme(page, measured)  # the marks stay
    text = page.read_text()
    assert text.startswith("before\n\n<!-- rates")
    assert text.endswith(f"{readme.END_LINE}\n\nafter\n")
    assert "obsolete" not in text
    assert "| 1,000 (900 to 1,100) | **2,000** (1,500 to 2,500) | - |" in text
    assert "in bulk" not in text  # nobody was measured
    assert str(STAMP.when) in text


def test_readme_has_the_marks_of_its_table() -> None:
    page = (Path(__file__).parents[2] / "README.md").read_text()
    assert page.count(readme.BEGIN_LINE) == page.count(readme.END_LINE) == 1


def test_parts_without_new_results_stay_on_the_page() -> None:
    old = peers.build_page(build_results(), {"dramatiq": "1.2"})
    measured = {"turns": {"holdfast": build_result({"drain, 1 process": 5.0})}}
    page = peers.build_page(measured, {}, old)
    sections = peers.split_sections(page)
    for title in ("A long queue", peers.GROWTH_TITLE):
        assert sections[title] == peers.split_sections(old)[title]
    assert "| holdfast | 5.0 |" in sections["Enqueue and drain, by turns"]
    assert "- dramatiq 1.2: " in sections[peers.CONDITIONS_TITLE]
    assert page.count("## What was run") == 1
