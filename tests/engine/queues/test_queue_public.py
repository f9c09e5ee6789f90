"""pgmq_public, the wrappers of Supabase: signatures, results and rights."""

from __future__ import annotations

from message_queue_calls import acting_as, count_rows, create_queue, expect_error, send_messages

from holdfast.engine.connection import Connection

MESSAGES_RESULT = "SETOF pgmq.message_record"
WRAPPER_FUNCTIONS = {
    ("send", "queue_name text, message jsonb, sleep_seconds integer DEFAULT 0", "SETOF bigint"),
    ("send_batch", "queue_name text, messages jsonb[], sleep_seconds integer DEFAULT 0", "SETOF bigint"),
    ("read", "queue_name text, sleep_seconds integer DEFAULT 30, n integer DEFAULT 1", MESSAGES_RESULT),
    ("pop", "queue_name text", MESSAGES_RESULT),
    ("archive", "queue_name text, message_id bigint", "boolean"),
    ("delete", "queue_name text, message_id bigint", "boolean"),
}
API_ROLES = ("anon", "authenticated", "service_role")
CALLS_BY_FUNCTION = {
    "send": "pgmq_public.send(queue_name => 'q', message => '1')",
    "read": "pgmq_public.read(queue_name => 'q', sleep_seconds => 60, n => 1)",
    "pop": "pgmq_public.pop(queue_name => 'q')",
    "delete": "pgmq_public.delete(queue_name => 'q', message_id => 3)",
    "archive": "pgmq_public.archive(queue_name => 'q', message_id => 4)",
}


async def test_the_wrappers_are_supabases(conn: Connection) -> None:
    rows = await conn.fetch(
        """select proname::text, pg_get_function_arguments(oid), pg_get_function_result(oid) from pg_proc
           where pronamespace = 'pgmq_public'::regnamespace"""
    )
    assert {tuple(row) for row in rows} == WRAPPER_FUNCTIONS
    pinned = """select bool_and(proconfig::text like '%search_path=%' and not prosecdef) from pg_proc
                where pronamespace = 'pgmq_public'::regnamespace"""
    assert await conn.fetchval(pinned)


async def test_who_may_execute_them(conn: Connection) -> None:
    may = """select count(*) from pg_proc where pronamespace = 'pgmq_public'::regnamespace
             and has_function_privilege($1, oid, 'execute')"""
    for role in API_ROLES:
        assert await conn.fetchval(may, role) == 6
        for schema in ("pgmq", "pgmq_public"):
            assert await conn.fetchval("select has_schema_privilege($1, $2, 'usage')", role, schema)
    assert await conn.fetchval(may, "pg_read_all_stats") == 0


async def test_service_role_uses_every_queue(conn: Connection) -> None:
    await create_queue(conn)
    async with acting_as(conn, "service_role"):
        assert [row[0] for row in await conn.fetch("select * from pgmq_public.send('q', '{\"a\": 1}')")] == [
            1
        ]
        batch = "select * from pgmq_public.send_batch('q', array['1','2','3','4']::jsonb[], 0)"
        assert [row[0] for row in await conn.fetch(batch)] == [2, 3, 4, 5]
        assert await conn.fetchval("select * from pgmq_public.send('q', '1', sleep_seconds => 3600)") == 6
        rows = await conn.fetch("select * from pgmq_public.read('q', 60, 2)")
        assert [row["msg_id"] for row in rows] == [1, 2]
        assert [row["msg_id"] for row in await conn.fetch("select * from pgmq_public.pop('q')")] == [3]
        assert await conn.fetchval("select pgmq_public.archive('q', 4)") is True
        assert await conn.fetchval("select pgmq_public.delete('q', 5)") is True
        assert await conn.fetchval("select pgmq_public.delete('q', 5)") is False
        assert await conn.fetch("select * from pgmq_public.pop('q')") == []
    assert await count_rows(conn, "a_q") == 1


async def test_a_missing_queue_stays_an_undefined_table(conn: Connection) -> None:
    async with acting_as(conn, "service_role"):
        for call in CALLS_BY_FUNCTION.values():
            await expect_error(conn, "42P01", f"select * from {call}".replace("'q'", "'nope'"))


async def test_api_roles_may_do_nothing_until_rights_are_granted(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 4)
    secured = "select count(*) from pg_class where relname in ('q_q', 'a_q') and relrowsecurity"
    assert await conn.fetchval(secured) == 2
    for role in ("anon", "authenticated"):
        async with acting_as(conn, role):
            for call in CALLS_BY_FUNCTION.values():
                await expect_error(conn, "42501", f"select * from {call}")
            await expect_error(conn, "42501", "select pgmq.create('mine')")
            await expect_error(conn, "42501", "select pgmq.drop_queue('q')")
            await expect_error(conn, "42501", "select pgmq.purge_queue('q')")
    assert await count_rows(conn, "q_q") == 4


RIGHTS_BY_FUNCTION = {
    "send": ("select, insert", None),
    "read": ("select, update", None),
    "pop": ("select, update, delete", None),
    "delete": ("select, delete", None),
    "archive": ("select, delete", "select, insert"),
}


async def test_the_rights_and_policies_each_call_needs(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 6)
    await conn.execute("create policy all_q on pgmq.q_q to authenticated using (true) with check (true)")
    await conn.execute("create policy all_a on pgmq.a_q to authenticated using (true) with check (true)")
    for name, (on_queue, on_archive) in RIGHTS_BY_FUNCTION.items():
        await conn.execute("revoke all on pgmq.q_q, pgmq.a_q from authenticated")
        await conn.execute(f"grant {on_queue} on pgmq.q_q to authenticated")
        if on_archive:
            await conn.execute(f"grant {on_archive} on pgmq.a_q to authenticated")
        async with acting_as(conn, "authenticated"):
            assert await conn.fetchval(f"select * from {CALLS_BY_FUNCTION[name]}")


async def test_a_role_that_sees_some_rows_hides_none_from_others(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 1000)
    await conn.execute("grant select, insert, update, delete on pgmq.q_q to authenticated")
    await conn.execute("create policy own on pgmq.q_q to authenticated using ((message ->> 'n')::int > 900)")
    async with acting_as(conn, "authenticated"):
        rows = await conn.fetch("select msg_id from pgmq_public.read('q', 60, 2)")
        assert [row[0] for row in rows] == [901, 902]
        assert [row[0] for row in await conn.fetch("select msg_id from pgmq_public.pop('q')")] == [903]
    rows = await conn.fetch("select msg_id from pgmq.read('q', 60, 2)")
    assert [row[0] for row in rows] == [1, 2]


async def test_a_role_with_rights_on_the_queue_alone_may_send_when_notifications_are_on(
    conn: Connection,
) -> None:
    await create_queue(conn)
    await conn.execute(
        "select pgmq.enable_notify_insert('q', 0); select holdfast.enable_message_wakeups('q')"
    )
    await conn.execute("grant select, insert on pgmq.q_q to authenticated")
    await conn.execute("create policy all_q on pgmq.q_q to authenticated using (true) with check (true)")
    async with acting_as(conn, "authenticated"):
        assert await conn.fetchval("select * from pgmq_public.send('q', '1')") == 1


async def test_supabase_studios_grants_find_their_signatures(conn: Connection) -> None:
    for signature in (
        "pop(text)",
        "send(text, jsonb, integer)",
        "send_batch(text, jsonb[], integer)",
        "archive(text, bigint)",
        "delete(text, bigint)",
        "read(text, integer, integer)",
        "read(text, integer, integer, jsonb)",
    ):
        await conn.execute(f"grant execute on function pgmq.{signature} to anon, authenticated")


async def test_users_change_no_sequence_of_a_queue(conn: Connection) -> None:
    """With setval, a user set the ids back: every send then failed with a duplicate key."""
    await create_queue(conn)
    await conn.execute(
        "select pgmq.enable_notify_insert('q', 0); select holdfast.enable_message_wakeups('q')"
    )
    await conn.execute("grant select, insert, update, delete on pgmq.q_q to anon, authenticated")
    await conn.execute(
        "create policy all_q on pgmq.q_q to anon, authenticated using (true) with check (true)"
    )
    ours = "relkind = 'S' and relnamespace = 'pgmq'::regnamespace"
    sequences = [row[0] for row in await conn.fetch(f"select oid::regclass::text from pg_class where {ours}")]
    assert len(sequences) > 3
    for role in ("anon", "authenticated"):
        for sequence in sequences:
            for call in (f"setval('{sequence}', 1)", f"nextval('{sequence}')"):
                async with acting_as(conn, role):
                    await expect_error(conn, "42501", f"select {call}")
        async with acting_as(conn, role):
            assert await conn.fetchval("select pgmq_public.send('q', '1')")
            assert await conn.fetchval("select total_messages from pgmq.metrics('q')")
    for right in ("usage", "select", "update"):
        statement = "select has_sequence_privilege('service_role', 'pgmq.q_q_msg_id_seq', $1)"
        assert await conn.fetchval(statement, right)
