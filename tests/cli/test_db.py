"""`holdfast db`, run as people run it: as a program of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator

import pytest
from embedded_processes import EmbeddedTestHome, accepts_connections, query, temporary_home, wait_until

from holdfast.engine import embedded
from holdfast.engine.embedded import supervisor
from holdfast.settings import Secret

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared() -> Generator[EmbeddedTestHome]:
    """One home for all tests here: each of them leaves it stopped or finds its own way."""
    with temporary_home("home with blank") as opened:
        yield opened


@pytest.fixture
def here(shared: EmbeddedTestHome) -> Generator[EmbeddedTestHome]:
    yield shared
    embedded.stop_server(shared.settings)


def run(here: EmbeddedTestHome, *arguments: str, database_url: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DATABASE_URL": database_url}
    return subprocess.run(
        [sys.executable, "-m", "holdfast", "--home", str(here.settings.home), "db", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


def test_start_and_stop_can_be_repeated(here: EmbeddedTestHome) -> None:
    for _ in range(2):
        started = run(here, "start")
        assert started.returncode == 0, started.stderr
        assert "until `holdfast db stop`" in started.stdout
        assert "•••" in started.stdout
    pid = here.find_postmaster_pid()
    assert pid is not None
    assert run(here, "stop").stdout == "Stopped.\n"
    assert here.has_no_processes()
    again = run(here, "stop")
    assert (again.returncode, again.stdout) == (0, "The embedded server was not running.\n")


def test_url_is_printed_alone_and_works(here: EmbeddedTestHome) -> None:
    result = run(here, "url")
    assert result.stderr == ""
    assert result.stdout.count("\n") == 1
    assert accepts_connections(Secret(result.stdout.strip()))
    assert json.loads(run(here, "url", "--json").stdout) == {"url": result.stdout.strip()}
    configured_url = "postgresql://user:secret@somewhere/else"
    assert run(here, "url", database_url=configured_url).stdout.strip() == configured_url


def test_psql_receives_arguments_but_no_password(here: EmbeddedTestHome) -> None:
    probe = "\\! cat /proc/$PPID/cmdline /proc/[0-9]*/cmdline 2>/dev/null | tr '\\000' ' '"
    shown = run(here, "psql", "-X", "-At", "-c", "select 6 * 7", "-c", probe)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines()[0] == "42"
    password = here.home.password
    assert password is not None
    assert password.reveal() not in shown.stdout
    assert "127.0.0.1" in shown.stdout  # the command line of psql was among what was listed


def test_psql_returns_the_exit_code_of_psql(here: EmbeddedTestHome) -> None:
    wrong = run(here, "psql", "-X", "-v", "ON_ERROR_STOP=1", "-c", "select nonsense")
    assert wrong.returncode == 1
    assert "nonsense" in wrong.stderr


def test_psql_uses_the_configured_url(here: EmbeddedTestHome) -> None:
    with embedded.start_server(here.settings) as server:
        address = server.url.reveal()
        query(server.url, """create role "o'd" login superuser password 'p@ss/w?rd'""")
        odd = address.split("@")[1]
        for configured_url in (
            address,
            f"postgresql://o%27d:p%40ss%2Fw%3Frd@{odd}",
            f"postgresql://o%27d@{odd}?password=p%40ss%2Fw%3Frd&connect_timeout=5",
        ):
            shown = run(here, "psql", "-X", "-At", "-c", "select 1", database_url=configured_url)
            assert (shown.stdout, shown.stderr) == ("1\n", "")
        query(server.url, """drop role "o'd" """)


def test_status_of_stopped_running_and_external_server(here: EmbeddedTestHome) -> None:
    stopped = json.loads(run(here, "status", "--json").stdout)
    assert stopped == {"state": "stopped", "folder": str(here.folder)}
    assert here.has_no_processes()
    with embedded.start_permanent_server(here.settings) as server:
        running = json.loads(run(here, "status", "--json").stdout)
        assert running["state"] == "running"
        assert running["kept"] is True
        assert running["version"] == server.version
        assert "•••" in running["url"]
        assert "running" in run(here, "status").stdout
    external = json.loads(run(here, "status", "--json", database_url="postgresql://a:b@c/d").stdout)
    assert external == {"state": "external", "url": "postgresql://a:•••@c/d"}


def test_reset_needs_confirmation(here: EmbeddedTestHome) -> None:
    with embedded.start_server(here.settings) as server:
        query(server.url, "create table precious ()")
        unasked = run(here, "reset")
        assert unasked.returncode == 5
        assert "--yes" in unasked.stderr
        tried = run(here, "reset", "--dry-run")
        assert tried.returncode == 0
        assert "Nothing was changed" in tried.stdout
        assert query(server.url, "select * from precious") == []
        done = run(here, "reset", "--yes")
        assert done.returncode == 0, done.stderr
    assert not here.home.data_folder.exists()
    assert run(here, "reset", "--yes").returncode == 0


@pytest.mark.parametrize("verb", ["start", "stop", "reset"])
def test_external_database_is_refused(here: EmbeddedTestHome, verb: str) -> None:
    refused = run(here, verb, database_url="postgresql://user:secret@somewhere/else")
    assert refused.returncode == 5
    assert "somewhere" in refused.stderr
    assert "secret" not in refused.stderr
    assert "Unset DATABASE_URL" in refused.stderr


def test_error_is_a_sentence_with_a_fix(here: EmbeddedTestHome) -> None:
    environment = {**os.environ, "HOLDFAST_PG_BIN": "/nowhere", "DATABASE_URL": ""}
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "--home", str(here.settings.home), "db", "start"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 6
    assert done.stderr.startswith("error: HOLDFAST_PG_BIN is /nowhere")
    assert "fix: " in done.stderr
    assert "Traceback" not in done.stderr


def test_server_started_by_url_stops_by_itself(here: EmbeddedTestHome) -> None:
    run(here, "url")
    linger = here.home.linger
    assert linger.exists()
    os.utime(linger, (0, 0))  # as if the half minute were over
    wait_until(here.has_no_processes)
    assert not [pid for pid, _, words in supervisor.iterate_processes() if str(here.folder) in words]
