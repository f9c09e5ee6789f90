"""How often a worker polls after work, until it sleeps."""

from __future__ import annotations

import time

import pytest

from holdfast.worker.poll_schedule import POLL_INTERVAL_WITH_LISTENER_S, PollSchedule

WAKEUP_INTERVAL_S = 0.05  # get_wakeup_interval in engine/functions/leases/wakeups.sql
SHORTEST_SLEEP_S = 0.8 * POLL_INTERVAL_WITH_LISTENER_S


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def record_work(schedule: PollSchedule) -> None:
    schedule.record_poll(received=True)


def list_pauses_until_sleep(schedule: PollSchedule) -> list[float]:
    """Return the pauses of polls without work before the long one."""
    pauses: list[float] = []
    while True:
        schedule.record_poll(received=False)
        pause_s = schedule.get_pause_s(listens=True)
        if pause_s >= SHORTEST_SLEEP_S:
            return pauses
        pauses.append(pause_s)


def test_a_single_task_is_followed_by_few_polls(clock: FakeClock) -> None:
    schedule = PollSchedule()
    record_work(schedule)
    assert len(list_pauses_until_sleep(schedule)) == 3
    clock.now += 60
    record_work(schedule)
    assert len(list_pauses_until_sleep(schedule)) == 3


@pytest.mark.parametrize("gap_s", [0.01, 60])
def test_a_poll_follows_soon_after_the_time_without_notifications(clock: FakeClock, gap_s: float) -> None:
    schedule = PollSchedule()
    for _ in range(100):
        record_work(schedule)
        clock.now += gap_s
        asked_after_s, polls = 0.0, list_pauses_until_sleep(schedule)
        while asked_after_s < 0.8 * WAKEUP_INTERVAL_S:
            asked_after_s += polls.pop(0)
        assert asked_after_s < 3 * WAKEUP_INTERVAL_S


def test_frequent_work_is_followed_by_many_polls(clock: FakeClock) -> None:
    schedule = PollSchedule()
    record_work(schedule)
    clock.now += 0.5
    record_work(schedule)
    assert len(list_pauses_until_sleep(schedule)) == 6


def test_after_a_notification_the_pauses_begin_again(clock: FakeClock) -> None:
    schedule = PollSchedule()
    list_pauses_until_sleep(schedule)
    schedule.restart()
    assert len(list_pauses_until_sleep(schedule)) == 3


def test_without_a_listener_pauses_are_short(clock: FakeClock) -> None:
    schedule = PollSchedule()
    list_pauses_until_sleep(schedule)
    assert schedule.get_pause_s(listens=False) <= 1.5
