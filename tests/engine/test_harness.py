"""The test harness: a database per test, a movable clock, and nothing shared between tests."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from holdfast.engine.connection import Connection, Database
from holdfast.settings import Secret
from holdfast.testing import Clock, wait_until


async def read_database_time(connection: Connection) -> datetime:
    value: datetime = await connection.fetchval("select holdfast.now()")
    return value


async def test_the_clock_moves_for_this_database_only_forward_by_what_was_asked(
    conn: Connection, clock: Clock
) -> None:
    before = await read_database_time(conn)
    await clock.advance(timedelta(hours=3))
    after = await read_database_time(conn)
    assert timedelta(hours=3) <= after - before < timedelta(hours=3, minutes=1)


@pytest.mark.parametrize("turn", [1, 2])
async def test_each_test_has_a_database_of_its_own(conn: Connection, turn: int) -> None:
    await conn.execute("create table public.mine (turn int)")
    await conn.execute("insert into public.mine values ($1)", turn)
    assert await conn.fetchval("select sum(turn) from public.mine") == turn


async def test_two_connections_see_one_database(conn: Connection, second: Connection, db: Database) -> None:
    names = {await each.fetchval("select current_database()") for each in (conn, second)}
    async with db.connection() as third:
        names.add(await third.fetchval("select current_database()"))
    assert len(names) == 1


async def test_an_empty_database_has_no_schema(empty_url: Secret, url: Secret) -> None:
    assert empty_url.reveal() != url.reveal()


async def test_eventually_returns_the_answer_and_gives_up_in_the_end() -> None:
    answers = iter([0, "", None, "yes"])
    assert await wait_until(lambda: next(answers)) == "yes"
    with pytest.raises(AssertionError, match="the moon"):
        await wait_until(lambda: False, within=timedelta(milliseconds=20), what="the moon")
