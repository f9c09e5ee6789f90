"""Create, name, list, measure and drop queues, and use their tables directly."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest
from message_queue_calls import count_rows, create_queue, expect_error, read_ids, rolled_back, send_messages

from holdfast.engine.connection import Connection

TIMESTAMP_TYPE = "timestamp with time zone"

QUEUE_TABLE_COLUMNS = [
    ("msg_id", "bigint", True, None, "a"),
    ("read_ct", "integer", True, "0", ""),
    ("enqueued_at", TIMESTAMP_TYPE, True, "now()", ""),
    ("last_read_at", TIMESTAMP_TYPE, False, None, ""),
    ("vt", TIMESTAMP_TYPE, True, None, ""),
    ("message", "jsonb", False, None, ""),
    ("headers", "jsonb", False, None, ""),
]
ARCHIVE_TABLE_COLUMNS = [
    ("msg_id", "bigint", True, None, ""),
    ("read_ct", "integer", True, "0", ""),
    ("enqueued_at", TIMESTAMP_TYPE, True, "now()", ""),
    ("last_read_at", TIMESTAMP_TYPE, False, None, ""),
    ("archived_at", TIMESTAMP_TYPE, True, "now()", ""),
    ("vt", TIMESTAMP_TYPE, True, None, ""),
    ("message", "jsonb", False, None, ""),
    ("headers", "jsonb", False, None, ""),
]


async def list_table_columns(conn: Connection, table: str) -> list[tuple[object, ...]]:
    rows = await conn.fetch(
        """select attname::text, format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid),
                  attidentity::text
             from pg_attribute a left join pg_attrdef d on adrelid = attrelid and adnum = attnum
            where attrelid = $1::text::regclass and attnum > 0 order by attnum""",
        f"pgmq.{table}",
    )
    return [tuple(row) for row in rows]


async def list_queue_relations(conn: Connection) -> set[str]:
    rows = await conn.fetch("select relname::text from pg_class where relnamespace = 'pgmq'::regnamespace")
    return {row["relname"] for row in rows}


async def list_cached_statements(conn: Connection) -> set[str]:
    """The functions that exist for single queues."""
    rows = await conn.fetch("select oid::regprocedure::text from pg_proc where proname ~ '^_[a-z]+:_'")
    return {row[0] for row in rows}


async def test_a_queue_without_its_own_statements_works_the_same(conn: Connection) -> None:
    await create_queue(conn)
    for signature in await list_cached_statements(conn):
        await conn.execute(f"drop function {signature}")
    assert await send_messages(conn, 5) == [1, 2, 3, 4, 5]
    assert await send_messages(conn, 2, headers=[{"h": 1}, None]) == [6, 7]
    assert await read_ids(conn, 2) == [1, 2]
    assert [row[0] for row in await conn.fetch("select msg_id from pgmq.pop('q', 2)")] == [3, 4]
    assert [row[0] for row in await conn.fetch("select pgmq.archive('q', array[6, 5])")] == [5, 6]
    assert [row[0] for row in await conn.fetch("select pgmq.delete('q', array[2, 1])")] == [1, 2]
    await create_queue(conn)
    assert len(await list_cached_statements(conn)) == 5
    assert await read_ids(conn) == [7]


async def test_both_tables_have_the_layout_of_the_contract(conn: Connection) -> None:
    await create_queue(conn)
    assert await list_table_columns(conn, "q_q") == QUEUE_TABLE_COLUMNS
    assert await list_table_columns(conn, "a_q") == ARCHIVE_TABLE_COLUMNS
    assert {"q_q_msg_id_seq", "archived_at_idx_q", "q_q_pkey", "a_q_pkey"} <= await list_queue_relations(conn)


async def test_vt_is_in_no_index_so_that_a_read_is_a_heap_only_update(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 100)
    async with conn.transaction():
        assert len(await read_ids(conn, 100)) == 100
        hot = "select pg_stat_get_xact_tuples_hot_updated('pgmq.q_q'::regclass)"
        assert await conn.fetchval(hot) == 100


async def read_server_version(conn: Connection) -> int:
    return int(await conn.fetchval("select current_setting('server_version_num')::integer / 10000"))


async def test_people_may_make_and_drop_an_index_on_vt(conn: Connection) -> None:
    await create_queue(conn)
    await conn.execute("create index q_q_vt_idx on pgmq.q_q (vt)")
    await send_messages(conn, 5)
    assert await read_ids(conn, 3) == [1, 2, 3]
    await conn.execute("drop index pgmq.q_q_vt_idx")
    await create_queue(conn)
    assert await read_ids(conn, 3) == [4, 5]


async def test_an_unlogged_queue_has_a_logged_archive(conn: Connection) -> None:
    await conn.execute("select pgmq.create_unlogged('u')")
    kinds = "select relname::text, relpersistence::text from pg_class where relname in ('q_u', 'a_u')"
    assert dict(await conn.fetch(kinds)) == {"q_u": "u", "a_u": "p"}
    assert await conn.fetchval("select is_unlogged from pgmq.list_queues()")
    if await read_server_version(conn) >= 15:  # the hints must start anew after a crash, as the ids do
        hints = "select relpersistence::text from pg_class where relname ~ '^([cfz]_u|q_u_msg_id_seq)$'"
        assert [row[0] for row in await conn.fetch(hints)] == ["u"] * 4


async def test_creating_twice_keeps_the_messages(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 2)
    await create_queue(conn)
    await conn.execute("select pgmq.create_non_partitioned('q'); select pgmq.create_unlogged('q')")
    assert await count_rows(conn, "q_q") == 2
    assert await conn.fetchval("select count(*) from pgmq.list_queues()") == 1


async def test_creating_is_transactional(conn: Connection) -> None:
    before = await list_queue_relations(conn)
    async with rolled_back(conn):
        await create_queue(conn)
    assert await list_queue_relations(conn) == before
    assert await conn.fetch("select * from pgmq.list_queues()") == []


async def test_two_sessions_that_create_the_same_queue_both_succeed(
    conn: Connection, second: Connection
) -> None:
    for turn in range(5):
        await asyncio.gather(create_queue(conn, f"Race{turn}"), create_queue(second, f"race{turn}"))
    assert await conn.fetchval("select count(*) from pgmq.list_queues()") == 5


async def test_a_name_has_at_most_47_characters(conn: Connection) -> None:
    await create_queue(conn, "x" * 47)
    for name in ("x" * 48, "y" * 200):
        message = await expect_error(conn, "P0001", "select pgmq.create($1)", name)
        assert message == "queue name is too long, maximum length is 47 characters"
        await expect_error(conn, "P0001", "select pgmq.validate_queue_name($1)", name)
        await expect_error(conn, "P0001", "select pgmq.create_unlogged($1)", name)
        await expect_error(conn, "P0001", "select pgmq.create_partitioned($1)", name)


async def test_a_name_has_at_most_47_bytes_so_that_two_names_never_share_tables(conn: Connection) -> None:
    await create_queue(conn, "ü" * 23 + "x")  # 47 bytes
    for name in ("ü" * 24, "ü" * 47, "日" * 16, "🐘" * 12):
        message = await expect_error(conn, "P0001", "select pgmq.create($1)", name)
        assert message == "queue name is too long, maximum length is 47 bytes"


async def test_a_long_name_does_not_reach_a_queue_whose_name_is_its_beginning(conn: Connection) -> None:
    await create_queue(conn, "x" * 47)
    await send_messages(conn, 1, "x" * 47)
    for longer in ("x" * 48, "x" * 61, "x" * 62, "x" * 300):
        await expect_error(conn, "42P01", "select * from pgmq.read($1, 1, 1)", longer)
        await expect_error(conn, "42P01", "select * from pgmq.send($1, '1')", longer)
    assert await count_rows(conn, "q_" + "x" * 47) == 1


HOSTILE_QUEUE_NAMES = [
    "with-hyphen",
    "with.dot",
    "with space",
    'with"quote',
    "UPPER",
    "",
    "select",
    "über",
    "%s%I",
    "x_msg_id_seq",
    "a\\b",
    "tab\there",
    "{}",
    "(select 1)",
    "/* */",
    "n" * 47,
    "x,y",
    "batch",
    "groups",
    "hint",
]


async def test_any_other_name_works_everywhere(conn: Connection) -> None:
    for name in HOSTILE_QUEUE_NAMES:
        await create_queue(conn, name)
        assert await send_messages(conn, 5, name) == [1, 2, 3, 4, 5]
        assert await read_ids(conn, 1, queue=name) == [1]
        assert await read_ids(conn, 1, queue=name, how="read_grouped_head") == []
        assert [row[0] for row in await conn.fetch("select msg_id from pgmq.pop($1)", name)] == [2]
        assert await conn.fetchval("select pgmq.archive($1, 3)", name)
        assert await conn.fetchval("select pgmq.delete($1, 4)", name)
        assert await conn.fetchval("select msg_id from pgmq.set_vt($1, 5, 0)", name) == 5
        assert await conn.fetchval("select queue_length from pgmq.metrics($1)", name) == 2
        await conn.execute("select pgmq.create_fifo_index($1)", name)
        await conn.execute("select pgmq.enable_notify_insert($1)", name)
        await send_messages(conn, 1, name)
        await conn.execute("select pgmq.disable_notify_insert($1)", name)
        assert await conn.fetchval("select pgmq.purge_queue($1)", name) == 3
    listed = {row[0] for row in await conn.fetch("select queue_name from pgmq.list_queues()")}
    assert listed == set(HOSTILE_QUEUE_NAMES)
    for name in HOSTILE_QUEUE_NAMES:
        assert await conn.fetchval("select pgmq.drop_queue($1)", name)
    assert {
        name for name in await list_queue_relations(conn) if name[:2] in {"q_", "a_", "c_", "f_", "z_", "n_"}
    } == set()


async def test_a_name_that_another_queues_sequence_has_taken_is_refused(conn: Connection) -> None:
    await create_queue(conn, "x")
    assert "taken" in await expect_error(conn, "42P07", "select pgmq.create('x_msg_id_seq')")
    assert await send_messages(conn, 1, "x") == [1]


async def test_forbidden_characters_are_refused_before_anything_is_made(conn: Connection) -> None:
    before = await list_queue_relations(conn)
    for name in ("a$b", "a;b", "a--b", "a'b"):
        message = await expect_error(conn, "P0001", "select pgmq.create($1)", name)
        assert message == r"queue name contains invalid characters: $, ;, --, or \'"
    await expect_error(conn, "22004", "select pgmq.create(null)")
    assert await list_queue_relations(conn) == before


async def test_format_table_name_lowers_and_checks(conn: Connection) -> None:
    assert await conn.fetchval("select pgmq.format_table_name('Foo-Bar', 'q')") == "q_foo-bar"
    await expect_error(conn, "P0001", "select pgmq.format_table_name('a;b', 'a')")


async def test_the_spelling_given_to_create_is_listed_and_every_spelling_works(conn: Connection) -> None:
    await create_queue(conn, "MixedCase")
    assert await conn.fetchval("select queue_name from pgmq.list_queues()") == "MixedCase"
    assert await send_messages(conn, 1, "mixedcase") == [1]
    assert await read_ids(conn, 1, queue="MIXEDCASE") == [1]
    assert await count_rows(conn, "q_mixedcase") == 1


async def test_two_spellings_are_one_queue(conn: Connection) -> None:
    await create_queue(conn, "Foo")
    await create_queue(conn, "foo")
    assert await conn.fetchval("select count(*) from pgmq.list_queues()") == 1
    assert await conn.fetchval("select pgmq.drop_queue('FOO')")
    assert await conn.fetch("select * from pgmq.list_queues()") == []
    assert await conn.fetch("select * from pgmq.metrics_all()") == []


async def test_dropping_takes_everything_and_says_when_there_is_nothing(conn: Connection) -> None:
    before = await list_queue_relations(conn)
    await create_queue(conn)
    await conn.execute("select pgmq.enable_notify_insert('q'); select pgmq.bind_topic('a', 'q')")
    await conn.execute("select pgmq.create_fifo_index('q')")
    assert await conn.fetchval("select pgmq.drop_queue('q')") is True
    assert await list_queue_relations(conn) == before
    assert await count_rows(conn, "notify_insert_throttle") == await count_rows(conn, "topic_bindings") == 0
    notices: list[str] = []
    conn.add_log_listener(lambda _, message: notices.append(str(message)))
    assert await conn.fetchval("select pgmq.drop_queue('q')") is False
    assert await conn.fetchval("select pgmq.drop_queue(null)") is False
    assert "does not exist" in notices[0]


async def test_the_deprecated_calls_warn(conn: Connection) -> None:
    await create_queue(conn)
    notices: list[asyncpg.PostgresLogMessage] = []
    conn.add_log_listener(lambda _, message: notices.append(message))
    await conn.execute("select pgmq.detach_archive('q')")
    assert await conn.fetchval("select pgmq.drop_queue('q', false)") is True
    assert await conn.fetchval("select pgmq.drop_queue('q', true)") is True
    assert [getattr(each, "severity", "") for each in notices].count("WARNING") == 3


async def test_purging_counts_and_ids_go_on(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 3)
    async with rolled_back(conn):
        assert await conn.fetchval("select pgmq.purge_queue('q')") == 3
        assert await count_rows(conn, "q_q") == 0
    assert await count_rows(conn, "q_q") == 3
    assert await conn.fetchval("select pgmq.purge_queue('q')") == 3
    assert await conn.fetchval("select pgmq.purge_queue('q')") == 0
    assert await send_messages(conn, 1) == [4]
    assert await read_ids(conn) == [4]


async def test_metrics_of_an_empty_and_of_a_used_queue(conn: Connection) -> None:
    await create_queue(conn)
    row = await conn.fetchrow("select * from pgmq.metrics('q')")
    assert row is not None
    assert (row["queue_length"], row["total_messages"], row["queue_visible_length"]) == (0, 0, 0)
    assert (row["newest_msg_age_sec"], row["oldest_msg_age_sec"], row["default_partition_length"]) == (
        None,
    ) * 3
    async with rolled_back(conn):
        await send_messages(conn, 1)
    await send_messages(conn, 3)
    await read_ids(conn, 1)
    await conn.execute("update pgmq.q_q set enqueued_at = now() - interval '90 seconds' where msg_id = 3")
    row = await conn.fetchrow("select * from pgmq.metrics('q')")
    assert row is not None
    assert (row["queue_name"], row["queue_length"], row["queue_visible_length"]) == ("q", 3, 2)
    assert row["total_messages"] == 4  # the one that was rolled back counts
    assert row["oldest_msg_age_sec"] == 90
    assert row["newest_msg_age_sec"] < 60


async def test_metrics_all_fails_as_a_whole_when_a_table_is_missing(conn: Connection) -> None:
    await create_queue(conn)
    await create_queue(conn, "gone")
    await conn.execute("drop table pgmq.q_gone")
    assert "pgmq.q_gone" in await expect_error(conn, "42P01", "select * from pgmq.metrics_all()")


async def test_the_lock_of_a_queue_is_one_for_all_spellings_and_lasts_for_a_transaction(
    conn: Connection, second: Connection
) -> None:
    await second.execute("set lock_timeout = '50ms'")
    async with conn.transaction():
        await conn.execute("select pgmq.acquire_queue_lock('Foo')")
        await expect_error(second, "55P03", "select pgmq.acquire_queue_lock('foo')")
        await second.execute("select pgmq.acquire_queue_lock('other')")
    await second.execute("select pgmq.acquire_queue_lock('foo')")


async def test_metrics_all_has_a_row_per_queue(conn: Connection) -> None:
    for name in ("b", "a", "C"):
        await create_queue(conn, name)
    await send_messages(conn, 2, "a")
    rows = await conn.fetch("select queue_name, queue_length from pgmq.metrics_all()")
    assert {(row[0], row[1]) for row in rows} == {("a", 2), ("b", 0), ("C", 0)}


async def test_partitioned_queues_need_pg_partman(conn: Connection) -> None:
    installed = await conn.fetchval("select count(*) from pg_extension where extname = 'pg_partman'")
    assert not installed
    message = await expect_error(conn, "P0001", "select pgmq.create_partitioned('p')")
    assert message == "pg_partman is required for partitioned queues"
    await expect_error(conn, "P0001", "select pgmq.create_partitioned('p', '1 day', '7 days', 0)")
    await create_queue(conn)
    await expect_error(conn, "22004", "select pgmq.convert_archive_partitioned('q')")
    await conn.execute("select pgmq.convert_archive_partitioned('nope')")
    assert await conn.fetchval("select is_partitioned from pgmq.list_queues()") is False


@pytest.mark.parametrize("table", ["meta", "notify_insert_throttle", "topic_bindings", "q_q", "a_q"])
async def test_monitors_may_read(conn: Connection, table: str) -> None:
    await create_queue(conn)
    assert await conn.fetchval(f"select has_table_privilege('pg_monitor', 'pgmq.{table}', 'select')")
    assert await conn.fetchval("select has_schema_privilege('pg_monitor', 'pgmq', 'usage')")
    assert await conn.fetchval("select has_sequence_privilege('pg_monitor', 'pgmq.q_q_msg_id_seq', 'select')")


async def test_public_may_not_enter_the_schema_but_execute_what_is_in_it(conn: Connection) -> None:
    assert not await conn.fetchval("select has_schema_privilege('public', 'pgmq', 'usage')")
    denied = """select count(*) from pg_proc where pronamespace = 'pgmq'::regnamespace
                and not has_function_privilege('public', oid, 'execute')"""
    assert await conn.fetchval(denied) == 0


async def test_tables_belong_to_the_owner_of_the_schema(conn: Connection) -> None:
    await create_queue(conn)
    owners = """select distinct pg_get_userbyid(relowner) from pg_class
                where relnamespace = 'pgmq'::regnamespace and relname ~ '^.{1,2}_?q'"""
    schema = "select pg_get_userbyid(nspowner) from pg_namespace where nspname = 'pgmq'"
    assert [row[0] for row in await conn.fetch(owners)] == [await conn.fetchval(schema)]


async def test_direct_statements_on_the_tables_work(conn: Connection) -> None:
    await create_queue(conn)
    await conn.execute(
        "insert into pgmq.q_q (vt, message) values (now(), '1'), (now() + interval '1 hour', '2')"
    )
    assert await read_ids(conn) == [1]
    await conn.execute("update pgmq.q_q set vt = now() - interval '1 second' where msg_id = 2")
    assert await read_ids(conn) == [2]
    await conn.execute("delete from pgmq.q_q where msg_id = 2")
    await conn.execute("insert into pgmq.q_q (msg_id, vt) overriding system value values (-5, now())")
    both = "select msg_id from pgmq.q_q union select msg_id from pgmq.a_q order by 1"
    assert [row[0] for row in await conn.fetch(both)] == [-5, 1]
