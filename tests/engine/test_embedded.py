"""The embedded server in normal use: start, share, keep, stop."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from embedded_processes import (
    EmbeddedTestHome,
    accepts_connections,
    end_user_process,
    query,
    read_printed_url,
    temporary_home,
    wait_until,
)

from holdfast import telemetry
from holdfast.engine import embedded
from holdfast.engine.embedded import supervisor
from holdfast.settings import Secret

pytestmark = pytest.mark.slow


@pytest.fixture
def here() -> Generator[EmbeddedTestHome]:
    with temporary_home(create=True) as new_place:
        yield new_place


@pytest.fixture
def fresh() -> Generator[EmbeddedTestHome]:
    with temporary_home() as new_place:
        yield new_place


def test_the_first_start_makes_a_safe_server(fresh: EmbeddedTestHome) -> None:
    with embedded.start_server(fresh.settings) as server:
        shown = dict(query(server.url, "select name, setting from pg_settings"))
        assert shown["fsync"] == "on"
        assert shown["listen_addresses"] == "127.0.0.1"
        assert shown["unix_socket_directories"] == ""
        assert shown["password_encryption"] == "scram-sha-256"
        assert shown["server_encoding"] == "UTF8"
        assert shown["TimeZone"] == "UTC"
        assert query(server.url, "select current_user, current_database()") == [("holdfast", "holdfast")]
        assert repr(server.url) not in server.url.reveal()
        assert server.url.reveal() not in repr(server)


def test_other_users_cannot_connect(here: EmbeddedTestHome) -> None:
    with embedded.start_server(here.settings) as server:
        password = here.home.password
        assert password is not None
        assert stat.S_IMODE((here.folder / "password").stat().st_mode) == 0o600
        assert stat.S_IMODE((here.folder / "data").stat().st_mode) == 0o700
        assert stat.S_IMODE(here.home.log.stat().st_mode) == 0o600
        for wrong in ("", "x"):
            address = server.url.reveal().replace(password.reveal(), wrong)
            with pytest.raises(psycopg.OperationalError, match="password"):
                psycopg.connect(address)


def test_no_password_in_any_command_line_or_log(fresh: EmbeddedTestHome) -> None:
    with embedded.start_server(fresh.settings):
        password = fresh.home.password
        assert password is not None
        assert not [
            w for _, _, words in supervisor.iterate_processes() for w in words if password.reveal() in w
        ]
        assert password.reveal() not in fresh.home.log.read_text()
        assert password.reveal() not in (fresh.folder / "data" / "holdfast.conf").read_text()


def test_a_second_start_shares_the_server(here: EmbeddedTestHome) -> None:
    with embedded.start_server(here.settings) as first, embedded.start_server(here.settings) as second:
        assert first.url == second.url
        first.release()
        assert accepts_connections(second.url)


def test_ten_processes_start_one_server(fresh: EmbeddedTestHome) -> None:
    users = [fresh.start_user() for _ in range(10)]
    urls = {read_printed_url(user).reveal() for user in users}
    assert len(urls) == 1
    assert accepts_connections(Secret(urls.pop()))
    supervisors = [pid for pid, _, words in supervisor.iterate_processes() if str(fresh.folder) in words]
    assert len(supervisors) == 1
    for user in users:
        end_user_process(user)


def test_it_stops_when_the_last_user_is_gone(here: EmbeddedTestHome) -> None:
    first, url = here.start_ready_user()
    second, _ = here.start_ready_user()
    end_user_process(first)
    assert accepts_connections(url)
    end_user_process(second)
    wait_until(here.has_no_processes)
    assert "the last user is gone" in here.home.log.read_text()
    assert "database system is shut down" in here.home.log.read_text()


def test_a_connected_client_counts_as_a_user(here: EmbeddedTestHome) -> None:
    if not Path("/proc/net/tcp").exists():
        pytest.skip("this system does not tell who is connected")
    server = embedded.start_server(here.settings)
    with psycopg.connect(server.url.reveal()) as connection:
        server.release()
        assert connection.execute("select pg_sleep(2.5)").fetchall()  # outlives the idle second


def test_a_forked_child_goes_on_using_it(here: EmbeddedTestHome) -> None:
    forks = """
import os, sys
from holdfast import settings
from holdfast.engine import embedded
server = embedded.start_server(settings.load_settings({"home": sys.argv[1]}))
if os.fork():
    server.release()
    os._exit(0)
print(server.url.reveal(), flush=True)
sys.stdin.read()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", forks, str(here.settings.home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    url = Secret(parent.stdout.readline().strip())
    assert parent.wait() == 0
    assert_server_stays_up(here)
    assert accepts_connections(url)
    parent.communicate()


def assert_server_stays_up(here: EmbeddedTestHome, seconds: float = 2.5) -> None:
    """It is the same server all the time, for longer than it would stay without users."""
    pid = here.find_postmaster_pid()
    assert pid is not None
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert here.find_postmaster_pid() == pid
        time.sleep(0.02)


def test_a_kept_server_runs_until_it_is_stopped(here: EmbeddedTestHome) -> None:
    embedded.start_permanent_server(here.settings).release()
    assert_server_stays_up(here)
    running_server = embedded.find_running_server(here.settings)
    assert running_server is not None
    assert running_server.is_permanent
    running_server.release()
    assert embedded.stop_server(here.settings) is True
    assert here.has_no_processes()
    assert embedded.stop_server(here.settings) is False


def test_an_unused_server_stays_for_a_while(here: EmbeddedTestHome) -> None:
    with embedded.start_server(here.settings) as server:
        server.keep_running_for(timedelta(seconds=3))
    assert_server_stays_up(here, 2.5)
    wait_until(here.has_no_processes)


def test_stop_ends_a_server_that_is_in_use(here: EmbeddedTestHome) -> None:
    with embedded.start_server(here.settings) as server:
        assert embedded.stop_server(here.settings) is True
        assert not accepts_connections(server.url)
        assert here.has_no_processes()
        with embedded.start_server(here.settings) as again:
            assert again.url == server.url
            assert accepts_connections(server.url)


def test_data_survives_a_restart_and_not_a_reset(here: EmbeddedTestHome) -> None:
    with embedded.start_server(here.settings) as server:
        query(server.url, "create table kept (id int)")
    embedded.stop_server(here.settings)
    with embedded.start_server(here.settings) as server:
        assert query(server.url, "select * from kept") == []
        embedded.reset_server(here.settings)
    assert not here.home.data_folder.exists()
    embedded.reset_server(here.settings)
    with embedded.start_server(here.settings) as server, pytest.raises(psycopg.errors.UndefinedTable):
        query(server.url, "select * from kept")


def test_options_hold_for_the_server_they_started(here: EmbeddedTestHome) -> None:
    with embedded.start_server(here.settings, options={"fsync": "off", "application_name": "it's"}) as server:
        assert query(server.url, "show fsync") == [("off",)]
    embedded.stop_server(here.settings)
    with embedded.start_server(here.settings) as server:
        assert query(server.url, "show fsync") == [("on",)]


def test_alter_system_overrides_our_options(here: EmbeddedTestHome) -> None:
    with embedded.start_server(here.settings) as server:
        query(server.url, "alter system set work_mem = '3MB'")
    embedded.stop_server(here.settings)
    with embedded.start_server(here.settings) as server:
        assert query(server.url, "show work_mem") == [("3MB",)]


def test_finding_a_server_does_not_start_one(fresh: EmbeddedTestHome) -> None:
    assert embedded.find_running_server(fresh.settings) is None
    assert not fresh.folder.exists()
    with embedded.start_server(fresh.settings) as server:
        running_server = embedded.find_running_server(fresh.settings)
        assert running_server is not None
        assert running_server.url == server.url
        running_server.release()
    embedded.stop_server(fresh.settings)
    assert embedded.find_running_server(fresh.settings) is None
    assert fresh.has_no_processes()


def test_a_configured_url_is_preferred(fresh: EmbeddedTestHome) -> None:
    database_url = Secret("postgresql://somewhere/else")
    assert embedded.locate_database(replace(fresh.settings, database_url=database_url)) == (
        database_url,
        None,
    )
    assert not fresh.folder.exists()
    url, server = embedded.locate_database(replace(fresh.settings, database_url=None))
    assert server is not None
    assert accepts_connections(url)
    server.release()


async def test_it_may_be_called_inside_an_event_loop(here: EmbeddedTestHome) -> None:
    with embedded.start_server(here.settings) as server:
        assert server.version.split(".")[0].isdigit()


def test_events_tell_what_happened(fresh: EmbeddedTestHome) -> None:
    seen: list[tuple[str, dict[str, object]]] = []
    with telemetry.subscription(lambda name, fields: seen.append((name, fields))):
        embedded.start_server(fresh.settings).release()
        embedded.stop_server(fresh.settings)
    assert [name for name, _ in seen] == ["database.started", "database.stopped"]
    assert seen[0][1]["fresh"] is True
    password = fresh.home.password
    assert password is not None
    assert password.reveal() not in str(seen)


AWKWARD_FOLDER_NAMES = [
    "with blank",
    'quote\'s "both"',
    "ünïcode-项目",
    "long-" + "x" * 120,
    "back\\slash $HOME `id` %s",
    os.fsdecode(b"not-\xff-text"),
]


@pytest.mark.parametrize(
    "name", AWKWARD_FOLDER_NAMES, ids=["blank", "quotes", "unicode", "long", "shell", "bytes"]
)
def test_folders_with_unusual_names_work(name: str) -> None:
    with temporary_home(name) as here:
        with embedded.start_server(here.settings) as server:
            assert accepts_connections(server.url)
        embedded.stop_server(here.settings)
        with embedded.start_server(here.settings) as server:
            assert accepts_connections(server.url)


def test_the_users_environment_does_not_matter(
    fresh: EmbeddedTestHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "PGPORT": "1",
        "PGDATA": "/nowhere",
        "PGHOST": "nowhere.invalid",
        "PGSSLMODE": "require",
        "PGOPTIONS": "-c nonsense=1",
        "LC_ALL": "xx_YY.utf8",
        "PYTHONPATH": "/nowhere",
        "PYTHONHOME": "/nowhere",
    }.items():
        monkeypatch.setenv(name, value)
    with embedded.start_server(fresh.settings) as server:
        monkeypatch.undo()
        assert accepts_connections(server.url)


def test_a_home_may_be_named_from_the_current_folder(
    here: EmbeddedTestHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here.settings.home.parent)
    with embedded.start_server(replace(here.settings, home=Path("home"))) as server:
        monkeypatch.chdir("/")
        assert accepts_connections(server.url)
        assert here.find_postmaster_pid()
