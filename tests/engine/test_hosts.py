"""An address with several hosts: the primary is found, also if another host is dead, frozen or a standby."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from urllib.parse import urlsplit

import pytest

from holdfast import errors
from holdfast.engine import hosts, primary_change
from holdfast.engine.connection import Database, open_connection
from holdfast.settings import Secret, Settings
from holdfast.testing import wait_until


@asynccontextmanager
async def run_frozen_host() -> AsyncGenerator[str]:
    """A host that accepts connections and never answers, like a stopped server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def find_closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def add_hosts(url: Secret, *before: str, after: tuple[str, ...] = ()) -> Secret:
    parts = urlsplit(url.reveal())
    login, _, host = parts.netloc.rpartition("@")
    return Secret(parts._replace(netloc=f"{login}@{','.join([*before, host, *after])}").geturl())


async def test_a_frozen_first_host_does_not_stop_anything(url: Secret, settings: Settings) -> None:
    """The driver tries hosts one after the other and spends all its time on the first."""
    settings = replace(settings, connect_timeout=timedelta(seconds=30))
    async with run_frozen_host() as frozen:
        several = add_hosts(url, frozen, find_closed_port())
        async with asyncio.timeout(20):
            async with open_connection(several, settings) as connection:
                assert await connection.fetchval("select 1") == 1
            async with Database(several, settings) as database, database.connection() as connection:
                assert await connection.fetchval("select 1") == 1


async def test_a_primary_that_freezes_later_is_left(url: Secret, settings: Settings) -> None:
    settings = replace(settings, connect_timeout=timedelta(seconds=30))
    async with run_frozen_host() as frozen:
        several = add_hosts(url, frozen)
        known = hosts.parse_hosts(several.reveal())
        hosts._last_primaries[tuple(known)] = known[0]
        async with asyncio.timeout(20), open_connection(several, settings):
            assert hosts._last_primaries[tuple(known)] == known[1]


async def test_other_connections_are_closed(url: Secret, settings: Settings) -> None:
    port = urlsplit(url.reveal()).port
    several = add_hosts(url, after=(f"localhost:{port}", f"127.0.0.1:{port}"))
    async with open_connection(several, settings) as connection:

        async def is_alone() -> bool:
            return bool(
                await connection.fetchval(
                    "select count(*) = 1 from pg_stat_activity"
                    " where datname = current_database() and backend_type = 'client backend'"
                )
            )

        await wait_until(is_alone, what="one session")


async def test_a_host_that_is_not_the_primary_is_not_used(url: Secret, settings: Settings) -> None:
    several = add_hosts(url, find_closed_port())
    standby = Secret(f"{several.reveal()}?target_session_attrs=standby")
    with pytest.raises(errors.DatabaseUnavailableError):
        async with open_connection(standby, settings):
            pass


async def test_the_error_of_a_host_that_answers_is_shown(url: Secret, settings: Settings) -> None:
    several = add_hosts(url, find_closed_port())
    with pytest.raises(errors.HoldfastError, match="nobody_has_this"):
        async with open_connection(
            Secret(urlsplit(several.reveal())._replace(path="/nobody_has_this").geturl()), settings
        ):
            pass


async def test_all_hosts_frozen_is_an_error_in_time(url: Secret, settings: Settings) -> None:
    settings = replace(settings, connect_timeout=timedelta(seconds=1))
    login = urlsplit(url.reveal()).netloc.rpartition("@")[0]
    async with run_frozen_host() as one, run_frozen_host() as two, asyncio.timeout(30):
        with pytest.raises(errors.DatabaseUnavailableError):
            async with open_connection(Secret(f"postgresql://{login}@{one},{two}/app"), settings):
                pass


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://ann:p%2Cw@one/app", []),
        ("postgresql://ann:p@one,two/app", [("one", 5432), ("two", 5432)]),
        ("postgresql://one:1,two:2/app", [("one", 1), ("two", 2)]),
        ("postgresql://ann@[::1]:5433,[fe80::1]/app", [("::1", 5433), ("fe80::1", 5432)]),
        ("postgresql:///app?host=one,two&port=1,2", [("one", 1), ("two", 2)]),
        ("postgresql:///app?host=one,two&port=7", [("one", 7), ("two", 7)]),
        ("postgresql:///app", []),
    ],
)
def test_parse_hosts(url: str, expected: list[tuple[str, int]]) -> None:
    assert hosts.parse_hosts(url) == expected


class FreezableHost:
    """A host in front of the real server that can stop answering, as a frozen server does."""

    def __init__(self, url: Secret) -> None:
        parts = urlsplit(url.reveal())
        assert parts.hostname
        assert parts.port
        self._target = (parts.hostname, parts.port)
        self._answering = asyncio.Event()
        self._answering.set()
        self._copies: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def freeze(self) -> None:
        self._answering.clear()

    async def stop(self) -> None:
        self._server.close()
        for copy in self._copies:
            copy.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._answering.wait()
        server_reader, server_writer = await asyncio.open_connection(*self._target)
        for source, target in ((reader, server_writer), (server_reader, writer)):
            copy = asyncio.create_task(self._copy(source, target))
            self._copies.add(copy)

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            await self._answering.wait()
            target.write(data)
        target.close()


async def test_call_leaves_a_primary_that_froze_and_was_replaced(
    url: Secret, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(primary_change, "SUSPECT_AFTER_S", 0.1)
    monkeypatch.setattr(primary_change, "CHECK_INTERVAL_S", 0.1)
    monkeypatch.setattr(primary_change, "ANSWER_TIMEOUT_S", 1.0)
    host = FreezableHost(url)
    several = add_hosts(url, await host.start())
    known = hosts.parse_hosts(several.reveal())
    hosts._last_primaries[tuple(known)] = known[0]
    settings = replace(settings, call_timeout=timedelta(minutes=10))
    async with asyncio.timeout(60), Database(several, settings) as database:
        async with database.connection() as connection:
            assert hosts.get_host(connection) == known[0]
        host.freeze()
        with pytest.raises(errors.DatabaseUnavailableError):
            async with database.connection() as connection:
                await connection.fetchval("select 1")
        async with database.connection() as connection:
            assert hosts.get_host(connection) == known[1]
            assert await connection.fetchval("select 1") == 1
    await host.stop()


async def test_slow_call_to_the_primary_is_not_ended(
    url: Secret, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(primary_change, "SUSPECT_AFTER_S", 0.05)
    monkeypatch.setattr(primary_change, "CHECK_INTERVAL_S", 0.05)
    several = add_hosts(url, find_closed_port())
    async with Database(several, settings) as database, database.connection() as connection:
        assert await connection.fetchval("select 7 from pg_sleep(1)") == 7


async def test_second_name_of_the_primary_does_not_replace_it(url: Secret) -> None:
    port = urlsplit(url.reveal()).port
    several = add_hosts(url, after=(f"localhost:{port}",)).reveal()
    for host in hosts.parse_hosts(several):
        assert not await primary_change.is_replaced(several, host)
