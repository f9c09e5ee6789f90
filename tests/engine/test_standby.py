"""A primary with a streaming standby: one address for both, and what `holdfast doctor` says."""

from __future__ import annotations

from collections.abc import Generator
from urllib.parse import urlsplit

import pytest
from replicated_servers import ReplicatedServers, run_replicated_servers

from holdfast.engine import doctor
from holdfast.engine.connection import open_connection
from holdfast.engine.doctor import DoctorFinding
from holdfast.settings import Secret, Settings
from holdfast.testing import wait_until


@pytest.fixture(scope="module")
def servers(settings: Settings) -> Generator[ReplicatedServers]:
    with run_replicated_servers(settings) as servers:
        yield servers


async def run_check(url: Secret, settings: Settings) -> DoctorFinding:
    findings = await doctor.run_doctor_checks(url, settings)
    return next(finding for finding in findings if finding.check == "standby")


async def change_settings(servers: ReplicatedServers, *statements: str) -> None:
    connection = await servers.primary.connect()
    for statement in statements:
        await connection.execute(statement)
    await connection.execute("select pg_reload_conf()")
    await connection.close()


@pytest.fixture
async def synchronous(servers: ReplicatedServers) -> None:
    """Make the standby synchronous, and wait until the server has noticed."""
    await change_settings(servers, "alter system set synchronous_standby_names = '*'")
    connection = await servers.primary.connect()

    async def is_synchronous() -> bool:
        return await connection.fetchval("select sync_state = 'sync' from pg_stat_replication") is True

    await wait_until(is_synchronous, what="a synchronous standby")
    await connection.close()


async def test_standby_first_in_the_address_is_not_used(
    servers: ReplicatedServers, settings: Settings
) -> None:
    parts = urlsplit(servers.standby_url.reveal())
    login = parts.netloc.rpartition("@")[0]
    hosts = f"127.0.0.1:{servers.standby.port},127.0.0.1:{servers.primary.port}"
    both = Secret(parts._replace(netloc=f"{login}@{hosts}").geturl())
    async with open_connection(both, settings) as connection:
        assert await connection.fetchval("select pg_is_in_recovery()") is False
    standby_only = Secret(f"{both.reveal()}?target_session_attrs=standby")
    async with open_connection(standby_only, settings) as connection:
        assert await connection.fetchval("select pg_is_in_recovery()") is True


async def test_doctor_says_what_an_asynchronous_standby_loses(
    servers: ReplicatedServers, settings: Settings
) -> None:
    await change_settings(servers, "alter system reset synchronous_standby_names")
    finding = await run_check(servers.primary_url, settings)
    assert finding.level == "warn"
    assert "1 connected, none synchronous" in finding.text
    assert "loses the last acknowledged jobs" in finding.text
    assert "synchronous_standby_names" in (finding.fix or "")


@pytest.mark.usefixtures("synchronous")
async def test_doctor_is_content_with_a_synchronous_standby(
    servers: ReplicatedServers, settings: Settings
) -> None:
    finding = await run_check(servers.primary_url, settings)
    assert (finding.level, finding.text) == ("ok", "1 of 1 synchronous: a failover loses no acknowledged job")


@pytest.mark.usefixtures("synchronous")
async def test_doctor_finds_a_commit_that_does_not_wait(
    servers: ReplicatedServers, settings: Settings
) -> None:
    await change_settings(servers, "alter database replicated set synchronous_commit = local")
    finding = await run_check(servers.primary_url, settings)
    await change_settings(servers, "alter database replicated reset synchronous_commit")
    assert finding.level == "warn"
    assert "synchronous_commit is local" in finding.text


@pytest.mark.usefixtures("synchronous")
async def test_doctor_says_that_a_role_may_not_see_standbys(
    servers: ReplicatedServers, settings: Settings
) -> None:
    await change_settings(servers, "create role plain login password 'plain'")
    parts = urlsplit(servers.primary_url.reveal())
    url = Secret(parts._replace(netloc=f"plain:plain@127.0.0.1:{servers.primary.port}").geturl())
    finding = await run_check(url, settings)
    assert finding.level == "warn"
    assert "may not see" in finding.text
    assert "pg_read_all_stats" in (finding.fix or "")


async def test_doctor_says_that_commits_wait_for_a_missing_standby(
    servers: ReplicatedServers, settings: Settings
) -> None:
    await change_settings(servers, "alter system set synchronous_standby_names = 'nobody'")
    connection = await servers.primary.connect()

    async def has_no_synchronous_standby() -> bool:
        return await connection.fetchval("select sync_state = 'async' from pg_stat_replication") is True

    await wait_until(has_no_synchronous_standby, what="no synchronous standby")
    finding = await run_check(servers.primary_url, settings)
    await connection.execute("alter system reset synchronous_standby_names")
    await connection.execute("select pg_reload_conf()")
    await connection.close()
    assert finding.level == "warn"
    assert "every commit waits" in finding.text


async def test_doctor_says_what_is_lost_without_a_standby(url: Secret, settings: Settings) -> None:
    finding = await run_check(url, settings)
    assert finding.level == "ok"
    assert "none visible" in finding.text
    assert "last backup" in finding.text
