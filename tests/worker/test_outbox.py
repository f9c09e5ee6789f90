from __future__ import annotations

from typing import Any
from uuid import UUID

from holdfast import telemetry
from holdfast.engine.leases import Lease, Outcome
from holdfast.worker.outbox import MIN_OUTCOMES_TO_FLUSH, Outbox


def outcome(number: int) -> Outcome:
    return Outcome(id=UUID(int=number), attempt=1, nonce=1, kind="succeed")


def test_outcome_stays_until_it_is_confirmed() -> None:
    outbox = Outbox()
    outbox.put_outcome(outcome(1))
    taken = outbox.take_unsent_outcomes()
    assert len(outbox) == 1
    other = Lease(id=UUID(int=7), attempt=1, nonce=1)
    outbox.add_ended_without_outcome(other)
    assert outbox.confirm_outcomes(taken) == [outcome(1), other]
    assert (len(outbox), taken) == (0, [outcome(1)])


def test_unconfirmed_outcomes_are_sent_first_again() -> None:
    outbox = Outbox()
    outbox.put_outcome(outcome(1))
    outbox.put_outcome(outcome(2))
    taken = outbox.take_unsent_outcomes()
    outbox.put_outcome(outcome(3))
    assert len(outbox) == 3
    outbox.put_outcomes_back(taken)
    assert len(outbox) == 3
    assert outbox.take_unsent_outcomes() == [outcome(1), outcome(2), outcome(3)]


def test_flush_waits_for_more_outcomes_until_there_are_enough() -> None:
    outbox = Outbox()
    assert outbox.seconds_until_flush is None
    outbox.put_outcome(outcome(0))
    assert outbox.seconds_until_flush is not None
    assert outbox.seconds_until_flush <= 0.005
    for number in range(1, MIN_OUTCOMES_TO_FLUSH):
        outbox.put_outcome(outcome(number))
    assert outbox.seconds_until_flush == 0


def test_success_is_reported_only_after_its_confirmation() -> None:
    outbox, events = Outbox(), list[tuple[str, dict[str, Any]]]()
    for number in (1, 2):
        outbox.put_outcome(outcome(number), {"task": UUID(int=number), "outcome": "succeed"})
    taken = outbox.take_unsent_outcomes()
    with telemetry.subscription(lambda name, fields: events.append((name, fields))):
        outbox.put_outcomes_back(taken)
        assert not events
        outbox.confirm_outcomes(outbox.take_unsent_outcomes(), ["stale", "ok"])
    assert [(name, fields["task"]) for name, fields in events] == [
        ("outcome.refused", UUID(int=1)),
        ("task.finished", UUID(int=2)),
    ]
