"""Every signature of the contract: name, argument names, defaults, result. Clients call by name."""

from __future__ import annotations

import pytest
from message_queue_calls import COLUMNS, create_queue, expect_error, send_messages

from holdfast.engine.connection import Connection

MESSAGES_RESULT = "SETOF pgmq.message_record"
POLL_PARAMETERS = "max_poll_seconds integer DEFAULT 5, poll_interval_ms integer DEFAULT 100"
BINDINGS_RESULT = (
    "TABLE(pattern text, queue_name text, bound_at timestamp with time zone, compiled_regex text)"
)
SENT_MESSAGES_RESULT = "TABLE(queue_name text, msg_id bigint)"
TIMESTAMP_TYPE = "timestamp with time zone"

CONTRACT_FUNCTIONS = [
    ("create", "queue_name text", "void"),
    ("create_non_partitioned", "queue_name text", "void"),
    ("create_unlogged", "queue_name text", "void"),
    (
        "create_partitioned",
        "queue_name text, partition_interval text DEFAULT '10000'::text, "
        "retention_interval text DEFAULT '100000'::text, premake integer DEFAULT 4",
        "void",
    ),
    (
        "convert_archive_partitioned",
        "table_name text, partition_interval text DEFAULT '10000'::text, "
        "retention_interval text DEFAULT '100000'::text, leading_partition integer DEFAULT 10",
        "void",
    ),
    ("drop_queue", "queue_name text", "boolean"),
    ("drop_queue", "queue_name text, partitioned boolean", "boolean"),
    ("purge_queue", "queue_name text", "bigint"),
    ("list_queues", "", "SETOF pgmq.queue_record"),
    ("metrics", "queue_name text", "pgmq.metrics_result"),
    ("metrics_all", "", "SETOF pgmq.metrics_result"),
    ("detach_archive", "queue_name text", "void"),
    ("validate_queue_name", "queue_name text", "void"),
    ("format_table_name", "queue_name text, prefix text", "text"),
    ("acquire_queue_lock", "queue_name text", "void"),
    ("create_fifo_index", "queue_name text", "void"),
    ("create_fifo_indexes_all", "", "void"),
    ("send", "queue_name text, msg jsonb", "SETOF bigint"),
    ("send", "queue_name text, msg jsonb, headers jsonb", "SETOF bigint"),
    ("send", "queue_name text, msg jsonb, delay integer", "SETOF bigint"),
    ("send", f"queue_name text, msg jsonb, delay {TIMESTAMP_TYPE}", "SETOF bigint"),
    ("send", "queue_name text, msg jsonb, headers jsonb, delay integer", "SETOF bigint"),
    ("send", f"queue_name text, msg jsonb, headers jsonb, delay {TIMESTAMP_TYPE}", "SETOF bigint"),
    ("send_batch", "queue_name text, msgs jsonb[]", "SETOF bigint"),
    ("send_batch", "queue_name text, msgs jsonb[], headers jsonb[]", "SETOF bigint"),
    ("send_batch", "queue_name text, msgs jsonb[], delay integer", "SETOF bigint"),
    ("send_batch", f"queue_name text, msgs jsonb[], delay {TIMESTAMP_TYPE}", "SETOF bigint"),
    ("send_batch", "queue_name text, msgs jsonb[], headers jsonb[], delay integer", "SETOF bigint"),
    ("send_batch", f"queue_name text, msgs jsonb[], headers jsonb[], delay {TIMESTAMP_TYPE}", "SETOF bigint"),
    # read and pop exist with and without their last argument instead of a default: the same calls resolve,
    # and scripts that grant rights on either signature find it.
    ("read", "queue_name text, vt integer, qty integer", MESSAGES_RESULT),
    ("read", "queue_name text, vt integer, qty integer, conditional jsonb", MESSAGES_RESULT),
    (
        "read_with_poll",
        f"queue_name text, vt integer, qty integer, {POLL_PARAMETERS}, "
        "conditional jsonb DEFAULT '{}'::jsonb",
        MESSAGES_RESULT,
    ),
    ("read_grouped", "queue_name text, vt integer, qty integer", MESSAGES_RESULT),
    ("read_grouped_rr", "queue_name text, vt integer, qty integer", MESSAGES_RESULT),
    ("read_grouped_head", "queue_name text, vt integer, qty integer", MESSAGES_RESULT),
    (
        "read_grouped_with_poll",
        f"queue_name text, vt integer, qty integer, {POLL_PARAMETERS}",
        MESSAGES_RESULT,
    ),
    (
        "read_grouped_rr_with_poll",
        f"queue_name text, vt integer, qty integer, {POLL_PARAMETERS}",
        MESSAGES_RESULT,
    ),
    (
        "read_grouped_head_with_poll",
        f"queue_name text, vt integer, qty integer, {POLL_PARAMETERS}",
        MESSAGES_RESULT,
    ),
    ("pop", "queue_name text", MESSAGES_RESULT),
    ("pop", "queue_name text, qty integer", MESSAGES_RESULT),
    ("set_vt", "queue_name text, msg_id bigint, vt integer", MESSAGES_RESULT),
    ("set_vt", f"queue_name text, msg_id bigint, vt {TIMESTAMP_TYPE}", MESSAGES_RESULT),
    ("set_vt", "queue_name text, msg_ids bigint[], vt integer", MESSAGES_RESULT),
    ("set_vt", f"queue_name text, msg_ids bigint[], vt {TIMESTAMP_TYPE}", MESSAGES_RESULT),
    ("set_vt", "queue_name text, msg_id text, vt text", MESSAGES_RESULT),  # ours, for untyped calls
    ("archive", "queue_name text, msg_id bigint", "boolean"),
    ("archive", "queue_name text, msg_ids bigint[]", "SETOF bigint"),
    ("delete", "queue_name text, msg_id bigint", "boolean"),
    ("delete", "queue_name text, msg_ids bigint[]", "SETOF bigint"),
    ("enable_notify_insert", "queue_name text, throttle_interval_ms integer DEFAULT 250", "void"),
    ("disable_notify_insert", "queue_name text", "void"),
    ("update_notify_insert", "queue_name text, throttle_interval_ms integer", "void"),
    (
        "list_notify_insert_throttles",
        "",
        f"TABLE(queue_name text, throttle_interval_ms integer, last_notified_at {TIMESTAMP_TYPE})",
    ),
    ("bind_topic", "pattern text, queue_name text", "void"),
    ("unbind_topic", "pattern text, queue_name text", "boolean"),
    ("list_topic_bindings", "", BINDINGS_RESULT),
    ("list_topic_bindings", "queue_name text", BINDINGS_RESULT),
    ("test_routing", "routing_key text", "TABLE(pattern text, queue_name text, compiled_regex text)"),
    ("send_topic", "routing_key text, msg jsonb", "integer"),
    ("send_topic", "routing_key text, msg jsonb, delay integer", "integer"),
    ("send_topic", "routing_key text, msg jsonb, headers jsonb", "integer"),  # ours, called by pgmq-py
    ("send_topic", "routing_key text, msg jsonb, headers jsonb, delay integer", "integer"),
    ("send_batch_topic", "routing_key text, msgs jsonb[]", SENT_MESSAGES_RESULT),
    ("send_batch_topic", "routing_key text, msgs jsonb[], headers jsonb[]", SENT_MESSAGES_RESULT),
    ("send_batch_topic", "routing_key text, msgs jsonb[], delay integer", SENT_MESSAGES_RESULT),
    ("send_batch_topic", f"routing_key text, msgs jsonb[], delay {TIMESTAMP_TYPE}", SENT_MESSAGES_RESULT),
    (
        "send_batch_topic",
        "routing_key text, msgs jsonb[], headers jsonb[], delay integer",
        SENT_MESSAGES_RESULT,
    ),
    (
        "send_batch_topic",
        f"routing_key text, msgs jsonb[], headers jsonb[], delay {TIMESTAMP_TYPE}",
        SENT_MESSAGES_RESULT,
    ),
    ("validate_routing_key", "routing_key text", "boolean"),
    ("validate_topic_pattern", "pattern text", "boolean"),
]

LIST_PGMQ_FUNCTIONS = """
select proname::text, pg_get_function_arguments(oid), pg_get_function_result(oid) from pg_proc
where pronamespace = 'pgmq'::regnamespace and proname !~ '^_' and prorettype <> 'trigger'::regtype
"""


async def test_the_public_functions_are_those_of_the_contract_and_no_others(conn: Connection) -> None:
    functions = {tuple(row) for row in await conn.fetch(LIST_PGMQ_FUNCTIONS)}
    assert functions == set(CONTRACT_FUNCTIONS)


async def test_none_runs_with_the_rights_of_its_owner(conn: Connection) -> None:
    statement = "select count(*) from pg_proc where pronamespace = 'pgmq'::regnamespace and prosecdef"
    assert await conn.fetchval(statement) == 0


TYPE_ATTRIBUTES = {
    "message_record": [
        ("msg_id", "bigint"),
        ("read_ct", "integer"),
        ("enqueued_at", TIMESTAMP_TYPE),
        ("last_read_at", TIMESTAMP_TYPE),
        ("vt", TIMESTAMP_TYPE),
        ("message", "jsonb"),
        ("headers", "jsonb"),
    ],
    "queue_record": [
        ("queue_name", "character varying"),
        ("is_partitioned", "boolean"),
        ("is_unlogged", "boolean"),
        ("created_at", TIMESTAMP_TYPE),
    ],
    "metrics_result": [
        ("queue_name", "text"),
        ("queue_length", "bigint"),
        ("newest_msg_age_sec", "integer"),
        ("oldest_msg_age_sec", "integer"),
        ("total_messages", "bigint"),
        ("scrape_time", TIMESTAMP_TYPE),
        ("queue_visible_length", "bigint"),
        ("default_partition_length", "bigint"),
    ],
}


@pytest.mark.parametrize("name", TYPE_ATTRIBUTES)
async def test_types_have_their_attributes_in_order(conn: Connection, name: str) -> None:
    rows = await conn.fetch(
        "select attname::text, format_type(atttypid, atttypmod) from pg_attribute "
        "where attrelid = ('pgmq.' || $1)::regclass and attnum > 0 order by attnum",
        name,
    )
    assert [tuple(row) for row in rows] == TYPE_ATTRIBUTES[name]


UNTYPED_CALLS = [
    "pgmq.read('q', '30', '1')",
    "pgmq.read('q', '30', '1', '{}')",
    "pgmq.pop('q')",
    "pgmq.pop('q', '1')",
    "pgmq.send('q', '{}')",
    "pgmq.send_batch('q', '{1,2}')",
    "pgmq.send('q', '{}', 5)",
    "pgmq.send('q', '{}', '{}'::jsonb)",
    "pgmq.set_vt('q', '1', '30')",
    "pgmq.set_vt('q', '{1,2}', '30')",
    "pgmq.set_vt('q', '1', '2030-01-01 00:00:00+00')",
    "pgmq.set_vt('q', 1, 30)",
    "pgmq.set_vt('q', array[1, 2], 30)",
    "pgmq.set_vt('q', 1, now())",
    "pgmq.archive('q', 1)",
    "pgmq.delete('q', array[1])",
    "pgmq.send_topic('a', '{}', 3)",
    "pgmq.send_topic(routing_key => 'a', msg => '{}', headers => '{}'::jsonb)",
    "pgmq.send_topic(routing_key => 'a', msg => '{}', delay => 0)",
    "pgmq.read(queue_name => 'q', vt => 1, qty => 1)",
    "pgmq.read(queue_name => 'q', vt => 1, qty => 1, conditional => '{}')",
    "pgmq.pop(queue_name => 'q')",
    "pgmq.pop(queue_name => 'q', qty => 2)",
]


async def test_calls_that_clients_send_resolve(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 2)
    for call in UNTYPED_CALLS:
        await conn.fetch(f"select * from {call}")


async def test_parameters_without_types_resolve(conn: Connection) -> None:
    for call in ("read($1, $2, $3)", "pop($1)", "send($1, $2)", "send_batch($1, $2)", "set_vt($1, $2, $3)"):
        statement = await conn.prepare(f"select * from pgmq.{call}")
        assert statement.get_attributes()


async def test_scalar_results_are_named_after_the_function(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 6)
    for call, name in [
        ("pgmq.send('q', '1')", "send"),
        ("pgmq.send_batch('q', array['1']::jsonb[])", "send_batch"),
        ("pgmq.archive('q', 1)", "archive"),
        ("pgmq.archive('q', array[2])", "archive"),
        ("pgmq.delete('q', 3)", "delete"),
        ("pgmq.delete('q', array[4])", "delete"),
        ("pgmq.purge_queue('q')", "purge_queue"),
        ("pgmq.drop_queue('q')", "drop_queue"),
    ]:
        [row] = await conn.fetch(f"select * from {call}")
        assert list(row.keys()) == [name]


async def test_messages_come_as_columns_or_as_one_record(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 1)
    [row] = await conn.fetch("select * from pgmq.read('q', 0, 1)")
    assert list(row.keys()) == COLUMNS
    text = await conn.fetchval("select pgmq.list_queues()::text")
    assert text.startswith("(q,f,f,")


CALLS_ON_MISSING_QUEUE = [
    "pgmq.send('nope', '1')",
    "pgmq.send_batch('nope', array['1']::jsonb[])",
    "pgmq.read('nope', 1, 1)",
    "pgmq.read('nope', 1, 1, '{}')",
    "pgmq.read_with_poll('nope', 1, 1)",
    "pgmq.read_grouped('nope', 1, 1)",
    "pgmq.read_grouped_rr('nope', 1, 1)",
    "pgmq.read_grouped_head('nope', 1, 1)",
    "pgmq.read_grouped_with_poll('nope', 1, 1)",
    "pgmq.pop('nope')",
    "pgmq.set_vt('nope', 1, 1)",
    "pgmq.set_vt('nope', array[1], now())",
    "pgmq.archive('nope', 1)",
    "pgmq.archive('nope', array[1])",
    "pgmq.delete('nope', 1)",
    "pgmq.delete('nope', array[1])",
    "pgmq.metrics('nope')",
    "pgmq.purge_queue('nope')",
    "pgmq.create_fifo_index('nope')",
]


async def test_a_missing_queue_is_an_undefined_table_with_its_name(conn: Connection) -> None:
    for call in CALLS_ON_MISSING_QUEUE:
        assert "pgmq.q_nope" in await expect_error(conn, "42P01", f"select * from {call}")


async def test_a_null_name_is_a_null_identifier(conn: Connection) -> None:
    for call in CALLS_ON_MISSING_QUEUE:
        await expect_error(
            conn, "22004", f"select * from {call.replace(chr(39) + 'nope' + chr(39), 'null::text')}"
        )


@pytest.mark.parametrize("bad", ["a$b", "a;b", "a--b", "a''b"])
async def test_a_forbidden_character_is_named(conn: Connection, bad: str) -> None:
    for call in CALLS_ON_MISSING_QUEUE:
        message = await expect_error(conn, "P0001", f"select * from {call.replace('nope', bad)}")
        assert message == r"queue name contains invalid characters: $, ;, --, or \'"
