"""`client.queues`: typed messages, receipts, policies, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Client, Message
from holdfast.engine.connection import Connection
from holdfast.engine.messages import consumers, queues
from holdfast.errors import (
    InvalidError,
    LeaseLostError,
    NotFoundError,
    RefusedError,
    SchemaMissingError,
)
from holdfast.settings import Secret, Settings
from holdfast.testing import Clock

MINUTE = timedelta(minutes=1)


@dataclass
class Invoice:
    number: int
    due: datetime | None = None


@pytest.fixture
async def client(url: Secret, settings: Settings) -> AsyncGenerator[Client]:
    async with Client(url.reveal(), settings=settings) as client:
        await client.queues.create("q")
        yield client


async def ids(client: Client, place: Any = "queue", queue: str = "q") -> list[int]:
    return [m.id for m in await client.queues.peek(queue, qty=1000, place=place)]


async def test_a_body_is_converted_to_the_requested_type(client: Client) -> None:
    invoice = Invoice(7, datetime(2026, 1, 2, tzinfo=UTC))
    sent = await client.queues.send("q", invoice, headers={"from": "me"})
    [message] = await client.queues.read("q", type=Invoice, vt=MINUTE)
    assert (message.id, message.body, message.headers) == (sent, invoice, {"from": "me"})
    assert (message.queue, message.reads) == ("q", 1)
    assert message.read_at is not None
    assert message.visible_at - message.read_at == MINUTE
    assert await client.queues.read("q") == []
    [seen] = await client.queues.peek("q")
    assert seen.body == {"number": 7, "due": "2026-01-02T00:00:00Z"}
    assert await client.queues.archive("q", message) == [sent]
    assert (await ids(client), await ids(client, "archive")) == ([], [sent])


@pytest.mark.parametrize("body", [None, 0, "", "text", [1, [2]], {"a": None}, 2**60, 1.5, True, "\u2028ü😀"])
async def test_any_json_value_can_be_sent(client: Client, body: object) -> None:
    await client.queues.send("q", body)
    [message] = await client.queues.read("q")
    assert message.body == body
    assert message.headers is None


async def test_batches_keep_their_order_and_their_headers(client: Client) -> None:
    sent = await client.queues.send_batch("q", ({"n": n} for n in range(250)), headers=[None, *range(1, 250)])
    assert sent == list(range(1, 251))
    read = await client.queues.read("q", qty=250)
    assert [m.body["n"] for m in read] == list(range(250))
    assert [m.headers for m in read] == [None, *range(1, 250)]


async def test_delay_is_a_duration_or_a_time(client: Client, clock: Clock) -> None:
    await client.queues.send("q", "span", delay=timedelta(minutes=10))
    await client.queues.send("q", "date", delay=datetime.now(UTC) + timedelta(minutes=20))
    await client.queues.send("q", "past", delay=datetime(2000, 1, 1, tzinfo=UTC))
    assert [m.body for m in await client.queues.read("q", qty=9)] == ["past"]
    await clock.advance(timedelta(minutes=11))
    assert [m.body for m in await client.queues.read("q", qty=9, vt=timedelta(hours=1))] == ["span", "past"]
    await clock.advance(timedelta(minutes=10))
    assert [m.body for m in await client.queues.read("q", qty=9)] == ["date"]


async def test_where_selects_messages_by_their_body(client: Client) -> None:
    await client.queues.send_batch("q", [{"kind": "a", "n": 1}, {"kind": "b", "n": 2}])
    assert [m.body["n"] for m in await client.queues.read("q", qty=9, where={"kind": "b"})] == [2]


async def test_wait_ends_with_the_first_message_or_after_its_time(client: Client) -> None:
    assert await client.queues.read("q", wait=timedelta(milliseconds=50)) == []
    waiting = asyncio.create_task(client.queues.read("q", wait=timedelta(seconds=30)))
    await client.queues.send("q", 1)
    assert [m.body for m in await asyncio.wait_for(waiting, 20)] == [1]


async def test_a_body_of_another_type_is_refused_and_stays_in_the_queue(client: Client, clock: Clock) -> None:
    await client.queues.send_batch("q", [{"number": 1}, {"number": "one"}, {"number": 3}])
    with pytest.raises(
        InvalidError, match=r"Message 2 of queue q: body does not have the expected type: .*\$\.number"
    ) as caught:
        await client.queues.read("q", qty=3, type=Invoice, vt=MINUTE)
    assert caught.value.field == "body"
    assert await ids(client) == [1, 2, 3]
    # The others can be read at once; the one that does not fit when its time is over.
    assert [m.body.number for m in await client.queues.read("q", qty=3, type=Invoice)] == [1, 3]
    await clock.advance(2 * MINUTE)
    [again] = await client.queues.read("q", qty=1, where={"number": "one"})
    assert again.reads == 2


async def test_pop_deletes_nothing_if_a_body_has_another_type(client: Client) -> None:
    await client.queues.send_batch("q", [{"number": 1}, {"number": "x"}])
    with pytest.raises(InvalidError, match="Message 2 of queue q"):
        await client.queues.pop("q", qty=2, type=Invoice)
    assert await ids(client) == [1, 2]
    assert [m.body.number for m in await client.queues.pop("q", type=Invoice)] == [1]
    assert await ids(client) == [2]


@pytest.mark.parametrize("act", ["archive", "delete", "set_vt"])
async def test_a_stale_receipt_is_refused_and_changes_nothing(client: Client, clock: Clock, act: str) -> None:
    await client.queues.send_batch("q", [1, 2])
    stale, good = await client.queues.read("q", qty=2, vt=MINUTE)
    await client.queues.set_vt("q", stale, timedelta(0))
    [again] = await client.queues.read("q", vt=timedelta(hours=1))
    assert again.id == stale.id
    extra = (MINUTE,) if act == "set_vt" else ()
    before = await client.queues.peek("q")
    with pytest.raises(LeaseLostError, match=f"Message {stale.id} of queue q"):
        await getattr(client.queues, act)("q", [good, stale], *extra)
    assert await client.queues.peek("q") == before
    assert await getattr(client.queues, act)("q", [again, good], *extra) == sorted([good.id, again.id])


async def test_plain_ids_are_not_compared_and_unknown_ids_are_ignored(client: Client) -> None:
    sent = await client.queues.send_batch("q", [1, 2, 3])
    held = await client.queues.read("q", qty=3)
    assert await client.queues.set_vt("q", sent[0], timedelta(0)) == [sent[0]]
    assert await client.queues.archive("q", [sent[0], 999]) == [sent[0]]
    assert await client.queues.delete("q", [sent[1], held[2], 999]) == [sent[2], sent[1]]
    assert await client.queues.delete("q", 999) == []
    assert await client.queues.delete("q", []) == []


async def test_peeked_messages_have_no_receipt(client: Client) -> None:
    await client.queues.send("q", 1)
    [seen] = await client.queues.peek("q")
    with pytest.raises(RefusedError, match="was not read"):
        seen.done(object())
    assert await client.queues.archive("q", seen) == [1]


async def test_queues_are_created_listed_purged_and_dropped(client: Client) -> None:
    await client.queues.create("Fast", unlogged=True)
    await client.queues.create("q")
    listed = {q.name: q for q in await client.queues.list()}
    assert {name: (q.unlogged, q.partitioned) for name, q in listed.items()} == {
        "Fast": (True, False),
        "q": (False, False),
    }
    await client.queues.send_batch("q", [1, 2])
    assert await client.queues.purge("q") == 2
    assert await client.queues.drop("fast") is True
    assert await client.queues.drop("fast") is False
    with pytest.raises(InvalidError, match="pg_partman is required") as missing:
        await client.queues.create_partitioned("parts", interval=timedelta(days=1))
    assert "Install the extension" in (missing.value.fix or "")


async def test_metrics_count_messages_by_state(client: Client, clock: Clock) -> None:
    await client.queues.send_batch("q", [1, 2, 3])
    await client.queues.send("q", 4, delay=MINUTE)
    [one] = await client.queues.read("q")
    await client.queues.archive("q", one)
    await client.queues.read("q")
    metrics = await client.queues.metrics("q")
    assert (metrics.total, metrics.visible, metrics.in_flight, metrics.delayed) == (3, 1, 1, 1)
    assert (metrics.archived, metrics.sent, metrics.dead) == (1, 4, 0)
    assert metrics.oldest_age is not None
    assert [m.queue for m in await client.queues.metrics_all()] == ["q"]


async def test_put_policy_changes_only_the_passed_fields(client: Client) -> None:
    before = await client.queues.policy("q")
    assert (before.max_reads, before.dead_letters) == (None, None)
    await client.queues.put_policy("q", max_reads=2, dead_letters="graves")
    after = await client.queues.put_policy("q", backoff=timedelta(seconds=1))
    assert (after.max_reads, after.dead_letters, after.backoff) == (2, "graves", timedelta(seconds=1))
    assert after.vt == before.vt
    assert "graves" in [q.name for q in await client.queues.list()]
    with pytest.raises(InvalidError, match="its own dead-letter queue") as wrong:
        await client.queues.put_policy("q", dead_letters="Q")
    assert wrong.value.field == "dead_letters"


async def test_requeue_sends_dead_letters_and_archived_messages_again(client: Client, clock: Clock) -> None:
    await client.queues.put_policy("q", max_reads=1, dead_letters="graves")
    await client.queues.send("q", "poison", headers={"h": 1})
    await client.queues.read("q", vt=MINUTE)
    await clock.advance(2 * MINUTE)
    assert await client.queues.read("q") == []  # buried on the way
    [dead] = await client.queues.peek("q", place="dead")
    assert dead.headers["x-holdfast-dead"]["error"] == "read more than max_reads times"
    back = await client.queues.requeue("q")
    assert list(back) == [dead.id]
    [message] = await client.queues.read("q")
    assert (message.id, message.body, message.headers) == (back[dead.id], "poison", {"h": 1})
    await client.queues.archive("q", message)
    assert await client.queues.requeue("q", [message.id, 12345], place="archive") == {
        message.id: message.id + 1
    }


WRONG_NAMES = ["", "a;b", "a$b", "a--b", "o'clock", "x" * 48, "ü" * 24, "nul\0"]


@pytest.mark.parametrize("name", WRONG_NAMES)
async def test_invalid_queue_names_are_refused_with_the_argument(client: Client, name: str) -> None:
    for call in (client.queues.create, client.queues.read, client.queues.purge, client.queues.policy):
        with pytest.raises(InvalidError) as caught:
            await call(name)
        assert caught.value.field == "queue"


@pytest.mark.parametrize("name", ["A b.c", 'quo"te', "über-lang", "x" * 47])
async def test_unusual_queue_names_work(client: Client, name: str) -> None:
    await client.queues.create(name)
    sent = await client.queues.send(name, 1)
    [message] = await client.queues.read(name.upper() if name.isascii() else name)
    assert await client.queues.archive(name, message) == [sent]
    assert await client.queues.drop(name)


CALLS = [
    ("send", ("none", 1)),
    ("send_batch", ("none", [1])),
    ("read", ("none",)),
    ("pop", ("none",)),
    ("archive", ("none", 1)),
    ("delete", ("none", [1, 2])),
    ("set_vt", ("none", 1, MINUTE)),
    ("metrics", ("none",)),
    ("peek", ("none",)),
    ("requeue", ("none",)),
    ("policy", ("none",)),
    ("put_policy", ("none",)),
    ("purge", ("none",)),
]


@pytest.mark.parametrize(("method", "args"), CALLS, ids=[name for name, _ in CALLS])
async def test_errors_name_the_missing_queue(client: Client, method: str, args: tuple[Any, ...]) -> None:
    with pytest.raises(NotFoundError, match="Message queue 'none' does not exist") as caught:
        await getattr(client.queues, method)(*args)
    assert caught.value.field == "queue"
    assert "holdfast queue create none" in str(caught.value.fix)


WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("read", ("q",), {"qty": 0}, "qty"),
    ("read", ("q",), {"qty": 2**31}, "qty"),
    ("read", ("q",), {"vt": timedelta(seconds=-1)}, "vt"),
    ("read", ("q",), {"vt": timedelta.max}, "vt"),
    ("read", ("q",), {"vt": "30"}, "vt"),
    ("read", ("q",), {"wait": timedelta(seconds=-1)}, "wait"),
    ("pop", ("q",), {"qty": -1}, "qty"),
    ("peek", ("q",), {"place": "nowhere"}, "place"),
    ("requeue", ("q",), {"place": "queue"}, "place"),
    ("requeue", ("q", ["x"]), {}, "ids"),
    ("set_vt", ("q", 1, timedelta(seconds=-1)), {}, "vt"),
    ("archive", ("q", 2**63), {}, "ids"),
    ("delete", ("q", ["1"]), {}, "ids"),
    ("send", ("q", 1), {"delay": timedelta(seconds=-1)}, "delay"),
    ("send", ("q", 1), {"delay": datetime(2026, 1, 1)}, "delay"),  # noqa: DTZ001  (that is the mistake)
    ("send", ("q", {"x": [float("nan")]}), {}, "body.x[0]"),
    ("send", ("q", {"x": "\0"}), {}, "body.x"),
    ("send", ("q", object()), {}, "body"),
    ("send", ("q", 1), {"headers": {"h": "\0"}}, "headers.h"),
    ("send_batch", ("q", []), {}, "bodies"),
    ("send_batch", ("q", [1, 2]), {"headers": [None]}, "headers"),
    ("send_batch", ("q", [1, float("inf")]), {}, "body[1]"),
    ("put_policy", ("q",), {"max_reads": 0}, "max_reads"),
    ("put_policy", ("q",), {"vt": timedelta(seconds=-1)}, "vt"),
    ("put_policy", ("q",), {"dead_letters": "a;b"}, "dead_letters"),
    ("create_partitioned", ("p",), {"interval": 0}, "interval"),
]


@pytest.mark.parametrize(("method", "args", "options", "field"), WRONG)
async def test_errors_name_the_wrong_argument_and_nothing_is_sent(
    client: Client, method: str, args: tuple[Any, ...], options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidError) as caught:
        await getattr(client.queues, method)(*args, **options)
    assert caught.value.field == field
    assert await ids(client) == []


@pytest.mark.slow
async def test_bodies_of_64_megabytes_are_sent_and_larger_ones_refused(client: Client) -> None:
    big = "x" * (64 * 1024 * 1024 - 2)
    await client.queues.send("q", big)
    [message] = await client.queues.read("q")
    assert message.body == big
    assert await client.queues.archive("q", message) == [message.id]
    with pytest.raises(InvalidError, match="the maximum is 67,108,864"):
        await client.queues.send("q", big + "x")


async def test_a_database_without_queues_says_what_to_do(empty_url: Secret, settings: Settings) -> None:
    async with Client(empty_url.reveal(), settings=settings) as client:
        for call in (client.queues.list(), client.queues.send("q", 1), client.queues.read("q")):
            with pytest.raises(SchemaMissingError, match="holdfast migrate"):
                await call


async def test_done_on_the_caller_s_transaction(client: Client, conn: Connection) -> None:
    await client.queues.create("next")
    await client.queues.send("q", 1)
    [message] = await client.queues.read("q")
    with pytest.raises(RefusedError, match="open transaction"):
        await message.done(conn)
    for commit in (False, True):
        transaction = conn.transaction()
        await transaction.start()
        await message.done(conn)
        await client.queues.send("next", message.body, on=conn)
        await (transaction.commit() if commit else transaction.rollback())
        assert await ids(client, "archive") == ([1] if commit else [])
        assert await ids(client, queue="next") == ([2] if commit else [])
    transaction = conn.transaction()
    await transaction.start()
    with pytest.raises(LeaseLostError):
        await message.done(conn)
    await transaction.rollback()


async def test_messages_are_comparable_values(client: Client) -> None:
    await client.queues.send("q", {"a": 1})
    [message] = await client.queues.read("q")
    assert isinstance(message, Message)
    with pytest.raises(AttributeError):
        message.body = 1  # type: ignore[misc]
    message.check()


async def test_the_worker_s_role_may_do_all_that_clients_and_consumers_do(
    client: Client, conn: Connection
) -> None:
    await conn.execute("set role holdfast_worker")
    await queues.run_json_statement(conn, queues.build_send_statement("q", [b"1"] * 6, delay=timedelta(0)))
    assert await queues.message_queue_exists(conn, "q")
    assert await queues.enable_message_wakeups(conn, "q")
    taken = await consumers.read_message_batch(conn, "q", vt=MINUTE, qty=6, sleep=MINUTE)
    receipts = [m.receipt or "" for m in taken.messages]
    assert await consumers.extend_visibility(conn, "q", receipts, MINUTE, lock_timeout=MINUTE) == {
        1,
        2,
        3,
        4,
        5,
        6,
    }
    assert await consumers.finish_messages(conn, "q", "archive", receipts[:1]) == {1}
    assert await consumers.finish_messages(conn, "q", "delete", receipts[1:2]) == {2}
    assert await consumers.fail_messages(conn, "q", receipts[2:3], "no") == {3: "retry"}
    assert await consumers.move_to_dead_letters(conn, "q", receipts[3:4], "no") == {4}
    assert await consumers.hide_messages(conn, "q", receipts[4:5], timedelta(0)) == {5}
    assert [m.id for m in await queues.read_messages(conn, "q", vt=None, qty=9)] == [5]
    assert await queues.requeue_messages(conn, "q", "dead", None, 9) == {4: 7}
    assert [m.id for m in await queues.pop_messages(conn, "q", 9)] == [7]
    assert [m.queue for m in await queues.list_message_metrics(conn)] == ["q"]
    await queues.put_message_policy(conn, "q", await queues.get_message_policy(conn, "q"))
    assert (await queues.tick_messages(conn))["dead_lettered"] == 0


async def test_register_returns_when_the_next_message_is_due(client: Client, conn: Connection) -> None:
    await queues.enable_message_wakeups(conn, "q")
    nothing = await consumers.read_message_batch(conn, "q", vt=MINUTE, qty=1, sleep=MINUTE)
    assert (nothing.messages, nothing.due_s) == ([], None)
    await client.queues.send("q", 1, delay=timedelta(minutes=10))
    later = await consumers.read_message_batch(conn, "q", vt=MINUTE, qty=1, sleep=MINUTE)
    assert later.messages == []
    assert later.due_s is not None
    assert 590 < later.due_s <= 600


async def test_extending_does_not_wait_for_a_row_that_somebody_has_locked(
    client: Client, conn: Connection, second: Connection
) -> None:
    await client.queues.send_batch("q", [1, 2])
    receipts = [m.receipt or "" for m in await client.queues.read("q", qty=2)]
    patience = timedelta(milliseconds=20)
    async with second.transaction():
        await second.execute("select from pgmq.q_q where msg_id = 2 for update")
        assert await consumers.extend_visibility(conn, "q", receipts, MINUTE, lock_timeout=patience) is None
        assert await consumers.extend_visibility(conn, "q", receipts[:1], MINUTE, lock_timeout=patience) == {
            1
        }
    assert await consumers.extend_visibility(conn, "q", receipts, MINUTE, lock_timeout=patience) == {1, 2}
    assert await conn.fetchval("show lock_timeout") == "0"  # the limit was the statement's own
