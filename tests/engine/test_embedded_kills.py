"""kill -9 of every process of the embedded server: committed data survives, and no process stays running."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Generator

import psycopg
import pytest
from embedded_processes import (
    EmbeddedTestHome,
    accepts_connections,
    end_user_process,
    kill_processes,
    query,
    read_printed_url,
    temporary_home,
    wait_until,
)

from holdfast.engine import embedded
from holdfast.engine.embedded import binaries, supervisor
from holdfast.engine.embedded.account import choose_server_account
from holdfast.engine.embedded.cluster import PostgresCluster
from holdfast.engine.embedded.home import INCOMPLETE_SUFFIX
from holdfast.errors import EmbeddedDatabaseError
from holdfast.settings import Secret

pytestmark = pytest.mark.slow


@pytest.fixture
def here() -> Generator[EmbeddedTestHome]:
    with temporary_home(create=True, alone=True) as new_place:
        yield new_place


@pytest.fixture
def fresh() -> Generator[EmbeddedTestHome]:
    with temporary_home(alone=True) as new_place:
        yield new_place


def commit_row(url: Secret) -> None:
    query(url, "create table if not exists kept (id int generated always as identity)")
    query(url, "insert into kept default values")


def count_committed_rows(url: Secret) -> int:
    return int(query(url, "select count(*) from kept")[0][0])


def assert_rows_survived(here: EmbeddedTestHome, rows: int = 1) -> None:
    """The next start works, and finds what was committed."""
    with embedded.start_server(here.settings) as server:
        assert count_committed_rows(server.url) == rows


def test_a_killed_user_leaves_nothing_running(here: EmbeddedTestHome) -> None:
    user, url = here.start_ready_user()
    commit_row(url)
    kill_processes(user.pid)
    user.communicate()
    wait_until(here.has_no_processes)
    assert "database system is shut down" in here.home.log.read_text()
    assert_rows_survived(here)


def test_a_killed_supervisor_takes_the_server_along_and_the_next_start_works(here: EmbeddedTestHome) -> None:
    _, url = here.start_ready_user()
    commit_row(url)
    kill_processes(here.home.supervisor_pid)
    assert_rows_survived(here)
    assert accepts_connections(url)  # at the same address, so the user that stayed goes on as well


def test_a_killed_supervisor_leaves_nothing_running(here: EmbeddedTestHome) -> None:
    user, url = here.start_ready_user()
    commit_row(url)
    kill_processes(here.home.supervisor_pid)
    end_user_process(user)
    if sys.platform == "linux":
        wait_until(here.has_no_processes)
    assert_rows_survived(here)


def test_a_server_without_a_supervisor_is_adopted(
    here: EmbeddedTestHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedded.start_server(here.settings) as server:
        commit_row(server.url)
        embedded.stop_server(here.settings)
    # As on systems where the kernel does not tell the server that its supervisor died.
    monkeypatch.setattr(supervisor, "build_parent_death_hook", lambda _: None)
    home = here.home
    account = choose_server_account(home)
    programs = binaries.make_postgres_binaries_runnable(
        binaries.choose_postgres_binaries(here.settings, home.cluster_version), account
    )
    port = home.port
    assert port is not None
    alone = supervisor.ChildPostmaster(
        PostgresCluster(home, account, programs).build_server_start_plan(port), 1
    )
    user, url = here.start_ready_user()
    assert here.find_postmaster_pid() == alone.pid
    assert count_committed_rows(url) == 1
    end_user_process(user)
    wait_until(lambda: not alone.is_alive())
    wait_until(here.has_no_processes)
    assert "the last user is gone" in home.log.read_text()


def test_a_server_without_a_supervisor_can_be_stopped(here: EmbeddedTestHome) -> None:
    home = here.home
    account = choose_server_account(home)
    programs = binaries.make_postgres_binaries_runnable(
        binaries.choose_postgres_binaries(here.settings, home.cluster_version), account
    )
    alone = supervisor.ChildPostmaster(
        PostgresCluster(home, account, programs).build_server_start_plan(home.choose_free_port()), 1
    )
    wait_until(lambda: here.find_postmaster_pid() == alone.pid)
    assert embedded.stop_server(here.settings) is True
    assert not alone.is_alive()


def test_a_killed_postmaster_comes_back_while_it_is_needed(here: EmbeddedTestHome) -> None:
    _, url = here.start_ready_user()
    commit_row(url)
    before = here.find_postmaster_pid()
    kill_processes(before)
    wait_until(lambda: accepts_connections(url))
    assert here.find_postmaster_pid() != before
    assert count_committed_rows(url) == 1


def test_a_killed_postmaster_with_a_backend_that_does_not_notice(here: EmbeddedTestHome) -> None:
    _, url = here.start_ready_user()
    commit_row(url)
    with psycopg.connect(url.reveal(), autocommit=True) as connection:
        os.kill(connection.info.backend_pid, signal.SIGSTOP)  # keeps the shared memory of the dead server
        kill_processes(here.find_postmaster_pid())
        wait_until(lambda: accepts_connections(url), 30)
    assert count_committed_rows(url) == 1


def test_a_killed_postmaster_that_nobody_needs_stays_dead(here: EmbeddedTestHome) -> None:
    user, url = here.start_ready_user()
    commit_row(url)
    pid = here.find_postmaster_pid()
    end_user_process(user)
    kill_processes(pid)
    wait_until(here.has_no_processes)
    assert_rows_survived(here)


def test_a_killed_backend(here: EmbeddedTestHome) -> None:
    _, url = here.start_ready_user()
    commit_row(url)
    before = here.find_postmaster_pid()
    with psycopg.connect(url.reveal(), autocommit=True) as connection:
        kill_processes(connection.info.backend_pid)
    wait_until(lambda: accepts_connections(url))
    assert here.find_postmaster_pid() == before
    assert_rows_survived(here)


def find_initdb_pid(here: EmbeddedTestHome) -> int | None:
    for pid, _, words in supervisor.iterate_processes():
        if words[0].endswith("initdb") and any(
            f"{here.folder}/data{INCOMPLETE_SUFFIX}" in word for word in words
        ):
            return pid
    return None


def test_initdb_killed_half_way(fresh: EmbeddedTestHome) -> None:
    user = fresh.start_user()
    kill_processes(wait_until(lambda: find_initdb_pid(fresh)))
    _, output = user.communicate()
    assert user.returncode != 0
    assert "EmbeddedDatabaseError" in output
    with embedded.start_server(fresh.settings) as server:
        commit_row(server.url)
    assert not list(fresh.folder.glob(f"*{INCOMPLETE_SUFFIX}*"))


def test_the_starter_killed_while_initdb_runs(fresh: EmbeddedTestHome) -> None:
    user = fresh.start_user()
    initdb = wait_until(lambda: find_initdb_pid(fresh))
    with contextlib.suppress(ProcessLookupError):  # it may just have ended by itself
        os.kill(initdb, signal.SIGSTOP)  # so that it is still there for the next start to find
    kill_processes(user.pid)
    with embedded.start_server(fresh.settings) as server:
        commit_row(server.url)
        assert not find_initdb_pid(fresh)
    assert not list(fresh.folder.glob(f"*{INCOMPLETE_SUFFIX}*"))


def test_the_starter_killed_while_the_server_comes_up(here: EmbeddedTestHome) -> None:
    user = here.start_user()
    wait_until(here.home.has_supervisor)
    kill_processes(user.pid)
    user.communicate()
    with embedded.start_server(here.settings) as server:
        assert accepts_connections(server.url)


@pytest.mark.parametrize("order", ["parents first", "children first"])
def test_everything_killed_at_once(here: EmbeddedTestHome, order: str) -> None:
    users = [here.start_user() for _ in range(3)]
    url, *_ = [read_printed_url(user) for user in users]
    commit_row(url)
    commit_row(url)
    pids = sorted(
        [*here.list_process_ids(), *(user.pid for user in users)], reverse=order == "children first"
    )
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # a backend of autovacuum comes and goes
            os.kill(pid, signal.SIGSTOP)
    kill_processes(*pids)
    here.end_users()
    assert_rows_survived(here, 2)


def test_starters_killed_again_and_again(here: EmbeddedTestHome) -> None:
    """Whatever moment the kill hits, the next one gets through and everything committed is there."""
    for rows in range(1, 6):
        killed_users = [here.start_user() for _ in range(3)]
        with embedded.start_server(here.settings) as server:
            commit_row(server.url)
            kill_processes(killed_users[0].pid, here.find_postmaster_pid(), killed_users[1].pid)
        kill_processes(*here.list_process_ids(), killed_users[2].pid)
        here.end_users()
        assert_rows_survived(here, rows)


def test_a_server_that_cannot_come_back_is_given_up(here: EmbeddedTestHome) -> None:
    user, url = here.start_ready_user()
    commit_row(url)
    control = here.home.data_folder / "global" / "pg_control"
    control.rename(control.with_name("pg_control.away"))
    kill_processes(here.find_postmaster_pid())
    wait_until(lambda: not here.home.has_supervisor(), 60)
    assert "gave up" in here.home.log.read_text()
    end_user_process(user)
    with pytest.raises(EmbeddedDatabaseError, match="pg_control"):
        embedded.start_server(here.settings)
    control.with_name("pg_control.away").rename(control)
    assert_rows_survived(here)


def test_a_removed_home_takes_the_server_along(here: EmbeddedTestHome) -> None:
    user, _ = here.start_ready_user()
    here.folder.rename(here.folder.with_name("elsewhere"))
    wait_until(lambda: here.has_no_processes() or None)
    end_user_process(user)
    with embedded.start_server(here.settings) as server:
        assert accepts_connections(server.url)


@pytest.mark.skipif(not shutil.which("ps"), reason="without ps there is only /proc, and there is /proc")
def test_processes_are_found_without_proc_as_well(here: EmbeddedTestHome) -> None:
    with embedded.start_server(here.settings):
        pid = here.find_postmaster_pid()
        assert pid is not None
        processes = {number: words for number, _, words in supervisor.iterate_processes_with_ps()}
        assert f"cluster_name={here.home.cluster_name}" in processes[pid]
        assert [number for number, _, _ in supervisor.iterate_processes_with_ps(pid)] == [pid]
