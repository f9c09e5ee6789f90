from __future__ import annotations

from uuid import UUID

from holdfast.engine.leases import Outcome
from holdfast.worker.outbox import FLUSH_COUNT, Outbox


def outcome(number: int) -> Outcome:
    return Outcome(id=UUID(int=number), attempt=1, nonce=1, kind="succeed")


def test_an_outcome_counts_until_it_is_answered() -> None:
    outbox = Outbox()
    outbox.put(outcome(1))
    taken = outbox.take()
    assert len(outbox) == 1
    outbox.add_without_outcome(UUID(int=7))
    assert outbox.confirm(taken) == [UUID(int=1), UUID(int=7)]
    assert (len(outbox), taken) == (0, [outcome(1)])


def test_what_was_not_answered_goes_first_next_time() -> None:
    outbox = Outbox()
    outbox.put(outcome(1))
    outbox.put(outcome(2))
    taken = outbox.take()
    outbox.put(outcome(3))
    assert len(outbox) == 3
    outbox.put_back(taken)
    assert len(outbox) == 3
    assert outbox.take() == [outcome(1), outcome(2), outcome(3)]


def test_company_is_waited_for_but_not_when_there_is_enough() -> None:
    outbox = Outbox()
    assert outbox.seconds_until_flush is None
    outbox.put(outcome(0))
    assert outbox.seconds_until_flush is not None
    assert outbox.seconds_until_flush <= 0.005
    for number in range(1, FLUSH_COUNT):
        outbox.put(outcome(number))
    assert outbox.seconds_until_flush == 0
