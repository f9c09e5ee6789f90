from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from holdfast.model import Progress
from holdfast.worker.context import TaskContext


@pytest.fixture
def ctx() -> TaskContext:
    return TaskContext(task_id="t", job_id="j", attempt=1, deadline=datetime.now(UTC))


def test_progress_is_computed_from_done_and_total(ctx: TaskContext) -> None:
    ctx.progress(1, 4, phase="read", message="page 1")
    assert ctx.get_unreported_progress() == Progress(percent=25.0, phase="read", message="page 1")


def test_newest_progress_is_reported_once(ctx: TaskContext) -> None:
    assert ctx.get_unreported_progress() is None
    ctx.progress(1, 4)
    ctx.progress(2, 4)
    newest = ctx.get_unreported_progress()
    assert newest == Progress(percent=50.0)
    ctx.mark_reported(newest)
    assert ctx.get_unreported_progress() is None


def test_progress_updated_during_a_report_is_not_lost(ctx: TaskContext) -> None:
    ctx.progress(1, 4)
    travelling = ctx.get_unreported_progress()
    assert travelling
    ctx.progress(2, 4)
    ctx.mark_reported(travelling)
    assert ctx.get_unreported_progress() == Progress(percent=50.0)


def test_percent_never_decreases_and_stays_between_0_and_100(ctx: TaskContext) -> None:
    for done in (50, 10, 900, -5):
        ctx.progress(done)
    assert ctx.get_unreported_progress() == Progress(percent=100.0)


def test_total_of_zero_gives_no_percent(ctx: TaskContext) -> None:
    ctx.progress(3, 0, message="working")
    assert ctx.get_unreported_progress() == Progress(message="working")


def test_phase_and_message_stay_until_they_are_replaced(ctx: TaskContext) -> None:
    ctx.progress(1, phase="a", message="x")
    ctx.progress(2, message="y")
    assert ctx.get_unreported_progress() == Progress(percent=2.0, phase="a", message="y")


def test_progress_text_is_truncated_and_cleaned(ctx: TaskContext) -> None:
    ctx.progress(message="a\0b\ud800" + "x" * 10_000)
    report = ctx.get_unreported_progress()
    assert report
    assert report.message
    assert report.message.startswith("a\N{REPLACEMENT CHARACTER}b?xxx")
    assert len(report.message) <= 500


def test_check_raises_after_the_worker_stopped_the_attempt(ctx: TaskContext) -> None:
    ctx.check()
    assert not ctx.cancelled
    ctx.stop("lease lost")
    assert ctx.cancelled
    with pytest.raises(asyncio.CancelledError, match="lease lost"):
        ctx.check()
