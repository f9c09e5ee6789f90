from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from holdfast.model import Progress
from holdfast.worker.context import TaskContext


@pytest.fixture
def ctx() -> TaskContext:
    return TaskContext(task_id="t", job_id="j", attempt=1, deadline=datetime.now(UTC))


def test_progress_is_a_share_of_the_total(ctx: TaskContext) -> None:
    ctx.progress(1, 4, phase="read", message="page 1")
    assert ctx.unreported() == Progress(percent=25.0, phase="read", message="page 1")


def test_only_the_newest_report_travels_and_only_once(ctx: TaskContext) -> None:
    assert ctx.unreported() is None
    ctx.progress(1, 4)
    ctx.progress(2, 4)
    newest = ctx.unreported()
    assert newest == Progress(percent=50.0)
    ctx.reported(newest)
    assert ctx.unreported() is None


def test_a_report_made_while_another_travels_is_not_lost(ctx: TaskContext) -> None:
    ctx.progress(1, 4)
    travelling = ctx.unreported()
    assert travelling
    ctx.progress(2, 4)
    ctx.reported(travelling)
    assert ctx.unreported() == Progress(percent=50.0)


def test_the_bar_never_runs_backwards_and_stays_within_its_ends(ctx: TaskContext) -> None:
    for done in (50, 10, 900, -5):
        ctx.progress(done)
    assert ctx.unreported() == Progress(percent=100.0)


def test_a_total_of_nothing_says_nothing(ctx: TaskContext) -> None:
    ctx.progress(3, 0, message="working")
    assert ctx.unreported() == Progress(message="working")


def test_phase_and_message_stay_until_replaced(ctx: TaskContext) -> None:
    ctx.progress(1, phase="a", message="x")
    ctx.progress(2, message="y")
    assert ctx.unreported() == Progress(percent=2.0, phase="a", message="y")


def test_what_the_database_cannot_keep_is_dropped(ctx: TaskContext) -> None:
    ctx.progress(message="a\0b\ud800" + "x" * 10_000)
    report = ctx.unreported()
    assert report
    assert report.message
    assert report.message.startswith("a\N{REPLACEMENT CHARACTER}b?xxx")
    assert len(report.message) <= 500


def test_check_stops_plain_code_once_the_worker_says_so(ctx: TaskContext) -> None:
    ctx.check()
    assert not ctx.cancelled
    ctx.stop("lease lost")
    assert ctx.cancelled
    with pytest.raises(asyncio.CancelledError, match="lease lost"):
        ctx.check()
