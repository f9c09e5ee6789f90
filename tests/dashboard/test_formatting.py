"""Text for people: durations, counts, sizes, states and reasons."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.formatting import (
    describe_count,
    describe_wait_reason,
    format_bounded_count,
    format_compact_number,
    format_count,
    format_duration,
    format_long_duration,
    format_relative_time,
    format_size,
    parse_iso_time_or_none,
    sanitize_text,
    shorten_id,
    truncate_text,
)
from holdfast.server.dashboard.attention import AttentionItem, sort_attention_items
from holdfast.server.dashboard.schedule_text import describe_schedule

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text", "long_text"),
    [
        (0.0, "0s", "0 seconds"),
        (0.034, "34ms", "0 seconds"),
        (0.25, "0.2s", "0 seconds"),
        (5.0, "5s", "5 seconds"),
        (41.0, "41s", "41 seconds"),
        (300.0, "5m", "5 minutes"),
        (3600.0, "1h", "60 minutes"),
        (95.0, "1m 35s", "2 minutes"),
        (7380.0, "2h 3m", "2 hours"),
        (59.6 * 60, "59m 36s", "60 minutes"),
        (7200.0, "2h", "2 hours"),
        (172_800.0, "2d", "2 days"),
        (-3.5, "-3.5s", "4 seconds"),
    ],
)
def test_durations(seconds: float, text: str, long_text: str) -> None:
    assert format_duration(seconds) == text
    assert format_duration(timedelta(seconds=seconds)) == text
    assert format_long_duration(seconds) == long_text


@pytest.mark.parametrize(
    ("cron", "text"),
    [
        ("0 6 * * *", "every day at 06:00"),
        ("30 9 LW * *", "on the last weekday (Monday to Friday) of every month at 09:30"),
        ("0 0 L * *", "on the last day of every month at 00:00"),
        ("0 8 * * 5#3", "on the third Friday of every month at 08:00"),
        ("0 8 * * mon#1", "on the first Monday of every month at 08:00"),
        ("0 8 * * 5L", "on the last Friday of every month at 08:00"),
        ("0 8 L 6 *", "0 8 L 6 *"),  # has no simple description
        ("0 8 * * x#9", "0 8 * * x#9"),
    ],
)
def test_schedules_in_words(cron: str, text: str) -> None:
    assert describe_schedule(cron, None) == text


def test_the_worst_and_largest_problem_comes_first() -> None:
    problems = [
        AttentionItem("info", "old snapshot", "", [], 900),
        AttentionItem("danger", "43 failures", "", [], 43),
        AttentionItem("warning", "dead letters", "", [], 5000),
        AttentionItem("danger", "600 failures", "", [], 600),
    ]
    subjects = [item.subject for item in sort_attention_items(problems)]
    assert subjects == ["600 failures", "43 failures", "dead letters", "old snapshot"]


def test_missing_values() -> None:
    assert format_duration(None) == "-"
    assert format_size(None, missing="n/a") == "n/a"
    assert parse_iso_time_or_none("not a time") is None
    assert parse_iso_time_or_none(None) is None


def test_relative_times() -> None:
    assert [format_relative_time(seconds) for seconds in (0.4, 300, -300)] == ["now", "in 5m", "5m ago"]


def test_counts_and_sizes() -> None:
    assert [format_compact_number(n) for n in (1204, 24_100, 3_200_000)] == ["1,204", "24.1k", "3.2M"]
    assert format_bounded_count(1_040_000, exact=False) == "~1M"
    assert format_bounded_count(10_000, exact=False, at_least=True) == "≥10k"
    assert describe_count(1, "job") == "1 job"
    assert describe_count(1_043_211, "job", exact=False) == "about 1,000,000 jobs"
    assert describe_count(12, "job", exact=False, at_least=True) == "at least 12 jobs"
    assert [format_count(n, "job") for n in (0, 1, 3)] == ["0 jobs", "1 job", "3 jobs"]
    assert format_count(2, "match", "matches") == "2 matches"
    assert [format_size(n) for n in (512, 1500, 123_456_789)] == ["512 B", "1.5 KB", "123 MB"]


def test_text() -> None:
    assert truncate_text("abcdef", 4) == "abc…"
    assert sanitize_text("a\x1b[31m\nb") == "a [31m b"
    assert shorten_id("01920000-0000-7000-8000-00000000a1f2") == "01920000…0a1f2"


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        (
            {"reason": "queued", "since": NOW - timedelta(minutes=5), "ahead": 3},
            "Ready for 5 minutes, 3 tasks ahead; all workers are busy.",
        ),
        (
            {"reason": "queued", "since": NOW - timedelta(seconds=2), "ahead": 0},
            "Ready for 2 seconds, next in line; all workers are busy.",
        ),
        (
            {
                "reason": "paused",
                "queue": "mail",
                "by": "ann",
                "paused_reason": "429 storm",
                "until": NOW + timedelta(hours=2),
            },
            "Queue mail is paused by ann: 429 storm; resumes in 2h.",
        ),
        (
            {"reason": "no_worker", "queue": "mail", "type": "send"},
            "No live worker serves queue mail and runs send tasks.",
        ),
        (
            {
                "reason": "limit",
                "limit": "host",
                "key": "example.org",
                "running": 2,
                "max_running": 2,
                "held_by": ["a"],
            },
            "Limit host for key example.org is full: 2 of 2 in use, held by a.",
        ),
        (
            {"reason": "scheduled", "until": NOW + timedelta(minutes=5), "attempt": 0},
            "Scheduled for later; starts in 5m.",
        ),
        (
            {"reason": "scheduled", "until": NOW - timedelta(seconds=30)},
            "Due, but no worker has claimed the task yet; was due 30s ago.",
        ),
        (
            {"reason": "dependency", "task": "ocr", "status": "running"},
            "Waiting for task ocr, which is running.",
        ),
        (
            {"reason": "ended", "at": NOW - timedelta(minutes=5), "error": {"type": "E", "message": "m."}},
            "The task has ended: E: m; ended 5m ago.",
        ),
    ],
)
def test_reasons(reason: dict[str, Any], sentence: str) -> None:
    assert str(describe_wait_reason(reason, NOW)) == sentence
