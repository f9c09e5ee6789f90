"""Topics: patterns, routing, and one copy for every queue."""

from __future__ import annotations

import pytest
from message_queue_calls import count_rows, create_queue, expect_error, rolled_back

from holdfast.engine.connection import Connection

PATTERN_MATCHES = [
    ("logs.*", "logs.error", True),
    ("logs.*", "logs", False),
    ("logs.*", "logs.a.b", False),
    ("logs.#", "logs.a.b", True),
    ("logs.#", "logs", False),
    ("lo*", "log", True),
    ("lo*", "lo", False),
    ("#.b", "a.b", True),
    ("#.b", "b", False),
    ("#", "anything.at-all_1", True),
    ("a.*.c", "a.b.c", True),
    ("a.*.c", "a.b.b.c", False),
    ("a.#.c", "a.b.b.c", True),
    ("a.b", "a.b", True),
    ("a.b", "axb", False),
    ("a.b", "A.b", False),
]


async def test_patterns_match_as_the_contract_says(conn: Connection) -> None:
    await create_queue(conn)
    for pattern, key, expected in PATTERN_MATCHES:
        await conn.execute("delete from pgmq.topic_bindings")
        await conn.execute("select pgmq.bind_topic($1, 'q')", pattern)
        rows = await conn.fetch("select * from pgmq.test_routing($1)", key)
        assert bool(rows) is expected, (pattern, key)


async def test_the_regular_expression_is_stored(conn: Connection) -> None:
    await create_queue(conn)
    await conn.execute("select pgmq.bind_topic('logs.*', 'q'), pgmq.bind_topic('logs.#', 'q')")
    rows = await conn.fetch("select pattern, compiled_regex from pgmq.topic_bindings")
    assert dict(rows) == {"logs.*": r"^logs\.[^.]+$", "logs.#": r"^logs\..*$"}


async def test_binding_is_idempotent_and_unbinding_tells(conn: Connection) -> None:
    await create_queue(conn)
    await create_queue(conn, "other")
    for _ in range(2):
        await conn.execute("select pgmq.bind_topic('a.*', 'q')")
    await conn.execute("select pgmq.bind_topic('b', 'other'), pgmq.bind_topic('a.*', 'other')")
    assert await count_rows(conn, "topic_bindings") == 3
    rows = await conn.fetch("select * from pgmq.list_topic_bindings()")
    assert list(rows[0].keys()) == ["pattern", "queue_name", "bound_at", "compiled_regex"]
    assert [(row[0], row[1]) for row in rows] == [("a.*", "other"), ("b", "other"), ("a.*", "q")]
    assert len(await conn.fetch("select * from pgmq.list_topic_bindings('q')")) == 1
    assert await conn.fetchval("select pgmq.unbind_topic('a.*', 'q')") is True
    assert await conn.fetchval("select pgmq.unbind_topic('a.*', 'q')") is False
    await conn.execute("select pgmq.drop_queue('other')")
    assert await count_rows(conn, "topic_bindings") == 0


async def test_each_queue_gets_one_copy_in_one_transaction(conn: Connection) -> None:
    for name in ("a", "b", "c"):
        await create_queue(conn, name)
    await conn.execute(
        "select pgmq.bind_topic('x.*', 'a'), pgmq.bind_topic('x.#', 'a'), pgmq.bind_topic('#', 'b')"
    )
    assert await conn.fetchval("select pgmq.send_topic('x.y', '{\"n\": 1}')") == 2
    assert await conn.fetchval("select pgmq.send_topic('x.y', '1', 60)") == 2
    assert await conn.fetchval("select pgmq.send_topic('x.y', '1', '{\"h\": 1}'::jsonb, 0)") == 2
    assert await conn.fetchval("select pgmq.send_topic('x.y', '1', '{\"h\": 1}'::jsonb)") == 2
    assert await conn.fetchval("select pgmq.send_topic('z', '1')") == 1
    async with rolled_back(conn):
        await conn.fetchval("select pgmq.send_topic('x.y', '1')")
    assert [await count_rows(conn, f"q_{name}") for name in "abc"] == [4, 5, 0]
    visible = "select count(*) from pgmq.read('a', 60, 10)"
    assert await conn.fetchval(visible) == 3
    assert await conn.fetchval("select count(*) from pgmq.q_a where headers = '{\"h\": 1}'") == 2


BATCH_ARGUMENTS = [
    "array['1','2']::jsonb[]",
    "array['1','2']::jsonb[], array['{}', null]::jsonb[]",
    "array['1','2']::jsonb[], 60",
    "array['1','2']::jsonb[], '2099-01-01Z'::timestamptz",
    "array['1','2']::jsonb[], array['{}', null]::jsonb[], 60",
    "array['1','2']::jsonb[], array['{}', null]::jsonb[], '2099-01-01Z'::timestamptz",
]


async def test_batches_answer_with_queue_and_id_in_order(conn: Connection) -> None:
    for name in ("b", "a"):
        await create_queue(conn, name)
        await conn.execute("select pgmq.bind_topic('x', $1)", name)
    for turn, arguments in enumerate(BATCH_ARGUMENTS):
        rows = await conn.fetch(f"select * from pgmq.send_batch_topic('x', {arguments})")
        first, second = 2 * turn + 1, 2 * turn + 2
        assert [tuple(row) for row in rows] == [("a", first), ("a", second), ("b", first), ("b", second)]
    assert await conn.fetchval("select count(*) from pgmq.read('a', 60, 99)") == 4
    assert await conn.fetch("select * from pgmq.send_batch_topic('nobody', array['1']::jsonb[])") == []


INVALID_ROUTING_KEYS = [
    (None, "cannot be NULL or empty"),
    ("", "cannot be NULL or empty"),
    ("x" * 256, "length cannot exceed 255 characters"),
    ("a b", "contains invalid characters"),
    ("ä", "contains invalid characters"),
    ("a\n", "contains invalid characters"),
    (".a", "cannot start with a dot"),
    ("a.", "cannot end with a dot"),
    ("a..b", "cannot contain consecutive dots"),
]
INVALID_PATTERNS = [
    *INVALID_ROUTING_KEYS,
    ("a.**", "cannot contain consecutive stars"),
    ("##", "cannot contain consecutive hashes"),
    ("a.*#", "cannot contain adjacent wildcards"),
    ("#*", "cannot contain adjacent wildcards"),
]


async def test_wrong_routing_keys_are_refused_by_all_that_take_them(conn: Connection) -> None:
    calls = [
        "validate_routing_key($1)",
        "test_routing($1)",
        "send_topic($1, '1'::jsonb)",
        "send_batch_topic($1, array['1']::jsonb[])",
    ]
    for key, words in [
        *INVALID_ROUTING_KEYS,
        ("a.*", "contains invalid characters"),
        ("#", "contains invalid characters"),
    ]:
        for call in calls:
            message = await expect_error(conn, "P0001", f"select * from pgmq.{call}", key)
            assert message.startswith(f"routing_key {words}")
    assert await conn.fetchval("select pgmq.validate_routing_key('a.B-c_9')") is True


async def test_wrong_patterns_are_refused(conn: Connection) -> None:
    await create_queue(conn)
    for pattern, words in INVALID_PATTERNS:
        for call in ("validate_topic_pattern($1)", "bind_topic($1, 'q')"):
            message = await expect_error(conn, "P0001", f"select pgmq.{call}", pattern)
            assert message.startswith(f"pattern {words}"), message
    assert await conn.fetchval("select pgmq.validate_topic_pattern('a.*.#')") is True


@pytest.mark.parametrize("name", ["null", "''"])
async def test_a_binding_needs_a_queue(conn: Connection, name: str) -> None:
    for call in ("bind_topic", "unbind_topic"):
        message = await expect_error(conn, "P0001", f"select pgmq.{call}('a', {name})")
        assert message == "queue_name cannot be NULL or empty"
    message = await expect_error(conn, "P0001", "select pgmq.bind_topic('a', 'nope')")
    assert message.startswith('Queue "nope" does not exist. ')
    await create_queue(conn, "Exact")
    await expect_error(conn, "P0001", "select pgmq.bind_topic('a', 'exact')")


async def test_wrong_messages_are_refused(conn: Connection) -> None:
    await create_queue(conn)
    await conn.execute("select pgmq.bind_topic('a', 'q')")
    assert await expect_error(conn, "P0001", "select pgmq.send_topic('a', null)") == "msg cannot be NULL"
    message = await expect_error(conn, "P0001", "select pgmq.send_topic('a', '1', -3)")
    assert message == "delay cannot be negative, got: -3"
    for msgs in ("null", "array[]::jsonb[]"):
        message = await expect_error(conn, "P0001", f"select pgmq.send_batch_topic('a', {msgs})")
        assert message == "msgs cannot be NULL or empty"
    call = "select pgmq.send_batch_topic('a', array['1']::jsonb[], array[]::jsonb[])"
    assert "headers array length (0)" in await expect_error(conn, "P0001", call)
    assert await count_rows(conn, "q_q") == 0
