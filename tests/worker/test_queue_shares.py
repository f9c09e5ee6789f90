from __future__ import annotations

from collections import Counter

import pytest

from holdfast.errors import InvalidError
from holdfast.worker.queue_shares import QueueSelector, QueueShare, parse_queue_shares


def test_queue_shares_are_parsed() -> None:
    assert parse_queue_shares("browser:4, default:8*3,mail,scrape*2") == [
        QueueShare("browser", 4),
        QueueShare("default", 8, 3),
        QueueShare("mail"),
        QueueShare("scrape", None, 2),
    ]
    assert parse_queue_shares("") == []


@pytest.mark.parametrize("text", ["a:0", "a*0", "a,a", ":4"])
def test_invalid_queue_shares_are_refused(text: str) -> None:
    with pytest.raises(InvalidError):
        parse_queue_shares(text)


def test_plain_queues_are_claimed_together() -> None:
    shares = QueueSelector(["a", "b"])
    assert shares.select_queues(7) == (["a", "b"], 7)
    assert not shares.handle_claim_response(["a", "b"], full=True)
    assert shares.handle_claim_response(["a", "b"], full=False)


def test_claim_of_a_queue_never_exceeds_its_limit() -> None:
    shares = QueueSelector(parse_queue_shares("small:2,large"))
    for running in range(3):
        shares.running_by_queue["small"] = running
        for _ in range(4):
            queues, slots = shares.select_queues(10)
            assert "small" not in queues or slots <= 2 - running
        assert shares.has_queue_with_room
    assert shares.select_queues(10) == (["large"], 10)


def test_no_claim_when_all_limited_queues_are_full() -> None:
    shares = QueueSelector(parse_queue_shares("a:1,b:1"))
    shares.running_by_queue.update({"a": 1, "b": 1})
    assert shares.select_queues(5) == ([], 0)
    assert not shares.has_queue_with_room


def test_nearly_full_queue_does_not_shrink_every_claim() -> None:
    shares = QueueSelector(parse_queue_shares("tight:1,wide"))
    requested = [shares.select_queues(100) for _ in range(4)]
    assert (["wide"], 100) in requested
    assert (["tight"], 1) in requested


def test_queues_are_claimed_in_proportion_to_their_weights() -> None:
    shares = QueueSelector(parse_queue_shares("often*3,seldom"))
    turns = Counter(shares.select_queues(10)[0][0] for _ in range(400))
    assert turns == {"often": 300, "seldom": 100}


def test_empty_queue_is_skipped_until_a_notification() -> None:
    shares = QueueSelector(parse_queue_shares("often*3,seldom"))
    assert not shares.handle_claim_response(["often"], full=False)
    assert {shares.select_queues(10)[0][0] for _ in range(8)} == {"seldom"}
    assert shares.handle_claim_response(["seldom"], full=False)
    shares.include_all_queues()
    assert {shares.select_queues(10)[0][0] for _ in range(8)} == {"often", "seldom"}
