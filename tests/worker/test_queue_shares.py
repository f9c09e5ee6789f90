from __future__ import annotations

from collections import Counter

import pytest

from holdfast.errors import InvalidError
from holdfast.worker.queue_shares import QueueSelector, QueueShare, parse_queue_shares


def test_shares_are_written_as_name_most_weight() -> None:
    assert parse_queue_shares("browser:4, default:8*3,mail,scrape*2") == [
        QueueShare("browser", 4),
        QueueShare("default", 8, 3),
        QueueShare("mail"),
        QueueShare("scrape", None, 2),
    ]
    assert parse_queue_shares("") == []


@pytest.mark.parametrize("text", ["a:0", "a*0", "a,a", ":4"])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(InvalidError):
        parse_queue_shares(text)


def test_plain_queues_are_asked_together_for_all_slots() -> None:
    shares = QueueSelector(["a", "b"])
    assert shares.select(7) == (["a", "b"], 7)
    assert not shares.handle_response(["a", "b"], full=True)
    assert shares.handle_response(["a", "b"], full=False)


def test_a_queue_is_never_asked_for_more_than_its_room() -> None:
    shares = QueueSelector(parse_queue_shares("small:2,large"))
    for running in range(3):
        shares.running_by_queue["small"] = running
        for _ in range(4):
            queues, slots = shares.select(10)
            assert "small" not in queues or slots <= 2 - running
        assert shares.has_room
    assert shares.select(10) == (["large"], 10)


def test_a_full_worker_of_limited_queues_asks_nothing() -> None:
    shares = QueueSelector(parse_queue_shares("a:1,b:1"))
    shares.running_by_queue.update({"a": 1, "b": 1})
    assert shares.select(5) == ([], 0)
    assert not shares.has_room


def test_a_tight_queue_does_not_make_every_question_small() -> None:
    shares = QueueSelector(parse_queue_shares("tight:1,wide"))
    requested = [shares.select(100) for _ in range(4)]
    assert (["wide"], 100) in requested
    assert (["tight"], 1) in requested


def test_queues_are_asked_in_proportion_to_their_weights() -> None:
    shares = QueueSelector(parse_queue_shares("often*3,seldom"))
    turns = Counter(shares.select(10)[0][0] for _ in range(400))
    assert turns == {"often": 300, "seldom": 100}


def test_an_empty_queue_is_left_out_until_there_is_news() -> None:
    shares = QueueSelector(parse_queue_shares("often*3,seldom"))
    assert not shares.handle_response(["often"], full=False)
    assert {shares.select(10)[0][0] for _ in range(8)} == {"seldom"}
    assert shares.handle_response(["seldom"], full=False)
    shares.refresh()
    assert {shares.select(10)[0][0] for _ in range(8)} == {"often", "seldom"}
