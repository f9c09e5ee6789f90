"""Damage to a home, by people or accidents: most of it is repaired, the rest gives a clear error."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest
from embedded_processes import (
    USER_PROCESS_CODE,
    EmbeddedTestHome,
    accepts_connections,
    query,
    temporary_home,
    wait_until,
)

from holdfast import telemetry
from holdfast.engine import embedded
from holdfast.engine.embedded import binaries, supervisor
from holdfast.engine.embedded import home as home_module
from holdfast.engine.embedded.account import choose_server_account
from holdfast.errors import EmbeddedDatabaseError
from holdfast.settings import Settings

pytestmark = pytest.mark.slow
AS_ROOT = os.geteuid() == 0


@pytest.fixture
def here() -> Generator[EmbeddedTestHome]:
    with temporary_home() as new_place:
        yield new_place


@pytest.fixture
def stopped() -> Generator[EmbeddedTestHome]:
    """A home with a row in it, and no server; it has run here before."""
    with temporary_home(create=True) as new_place:
        assert_server_works(new_place.settings)
        embedded.stop_server(new_place.settings)
        yield new_place


def assert_server_works(settings: Settings) -> None:
    with embedded.start_server(settings) as server:
        assert query(server.url, "select id from seven") == [(7,)]


def get_start_error(settings: Settings) -> EmbeddedDatabaseError:
    """The error of a start, which is one paragraph with a way out."""
    with pytest.raises(EmbeddedDatabaseError) as caught:
        embedded.start_server(settings)
    assert caught.value.fix
    assert "\n" not in caught.value.message
    assert "Traceback" not in str(caught.value)
    return caught.value


# Just works


def test_pid_file_that_names_a_living_stranger(stopped: EmbeddedTestHome) -> None:
    data_folder = stopped.home.data_folder
    # Of the server's own account: PostgreSQL itself only respects a number that could be such a process.
    account = choose_server_account(stopped.home)
    stranger = subprocess.Popen(
        ["cat"], stdin=subprocess.PIPE, user=None if account.is_current_user else account.uid, cwd="/"
    )
    pid_file = data_folder / "postmaster.pid"
    pid_file.write_text(f"{stranger.pid}\n{data_folder}\n1700000000\n5432\n\n127.0.0.1\n  1 2\nready   \n")
    shutil.chown(pid_file, data_folder.owner(), data_folder.group())
    seen: list[object] = []
    with telemetry.subscription(lambda name, fields: seen.append((name, fields.get("what")))):
        assert_server_works(stopped.settings)
    assert ("database.stale_state_removed", "stale postmaster.pid") in seen
    assert stranger.poll() is None
    stranger.communicate()


@pytest.mark.parametrize("content", ["", "999999\n", "nonsense\n"])
def test_pid_file_that_names_nobody(stopped: EmbeddedTestHome, content: str) -> None:
    (stopped.home.data_folder / "postmaster.pid").write_text(content)
    assert_server_works(stopped.settings)


def test_a_port_that_someone_took(stopped: EmbeddedTestHome) -> None:
    before = stopped.home.port
    assert before is not None
    with socket.socket() as someone:
        someone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        someone.bind(("127.0.0.1", before))
        someone.listen()
        assert_server_works(stopped.settings)
        assert stopped.home.port != before
    after = stopped.home.port
    embedded.stop_server(stopped.settings)
    assert_server_works(stopped.settings)
    assert stopped.home.port == after


def test_a_port_that_someone_takes_at_the_last_moment(
    stopped: EmbeddedTestHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stopped.home.port
    assert before is not None
    with socket.socket() as someone:
        someone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        someone.bind(("127.0.0.1", before))
        someone.listen()
        monkeypatch.setattr(home_module, "_is_port_free", lambda _: True)
        assert_server_works(stopped.settings)
        assert stopped.home.port != before


def test_a_copied_home_is_a_server_of_its_own(stopped: EmbeddedTestHome) -> None:
    with embedded.start_server(stopped.settings) as original:
        copy = replace(stopped.settings, home=stopped.settings.home.with_name("copy"))
        query(original.url, "checkpoint")
        # -a keeps the owner; the copy comes with pid file, port and password of the server that runs
        subprocess.run(["cp", "-a", stopped.settings.home, copy.home], check=True)
        with embedded.start_server(copy) as second:
            assert second.url != original.url
            assert query(second.url, "select id from seven") == [(7,)]
            query(second.url, "update seven set id = 8")
        assert query(original.url, "select id from seven") == [(7,)]
        embedded.stop_server(copy)
        assert accepts_connections(original.url)


def test_a_copy_that_lost_owner_and_mode(stopped: EmbeddedTestHome) -> None:
    copy = replace(stopped.settings, home=stopped.settings.home.with_name("copy"))
    subprocess.run(["cp", "-r", stopped.settings.home, copy.home], check=True)
    (copy.home / "postgres" / "data").chmod(0o755)
    (copy.home / "postgres").chmod(0o711)
    assert_server_works(copy)
    embedded.stop_server(copy)


def test_a_moved_home(stopped: EmbeddedTestHome) -> None:
    moved = replace(stopped.settings, home=stopped.settings.home.with_name("moved"))
    stopped.settings.home.rename(moved.home)
    assert_server_works(moved)
    embedded.stop_server(moved)


def test_a_lost_password(stopped: EmbeddedTestHome) -> None:
    before = stopped.home.password
    (stopped.folder / "password").unlink()
    assert_server_works(stopped.settings)
    assert stopped.home.password != before


def test_a_password_lost_while_the_server_runs(stopped: EmbeddedTestHome) -> None:
    with embedded.start_permanent_server(stopped.settings):
        (stopped.folder / "password").unlink()
        assert_server_works(stopped.settings)
        assert stopped.home.keep.exists()


def test_a_password_that_was_changed(stopped: EmbeddedTestHome) -> None:
    with embedded.start_server(stopped.settings) as server:
        query(server.url, "alter role holdfast password 'other'")
    embedded.stop_server(stopped.settings)
    assert_server_works(stopped.settings)


def test_a_port_file_lost_while_the_server_runs(stopped: EmbeddedTestHome) -> None:
    with embedded.start_server(stopped.settings) as server:
        (stopped.folder / "port").unlink()
        with embedded.start_server(stopped.settings) as again:
            assert again.url == server.url


def test_a_dropped_database_is_made_again(stopped: EmbeddedTestHome) -> None:
    with embedded.start_server(stopped.settings) as server:
        elsewhere = type(server.url)(server.url.reveal().removesuffix("/holdfast") + "/postgres")
        query(elsewhere, "drop database holdfast")
        with embedded.start_server(stopped.settings) as again:
            assert accepts_connections(again.url)


def test_half_made_folders_are_cleared_away(here: EmbeddedTestHome) -> None:
    half = here.folder / f"data{home_module.INCOMPLETE_SUFFIX}0123" / "data"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    here.folder.chmod(0o711)
    here.settings.home.chmod(0o711)
    with embedded.start_server(here.settings) as server:
        assert accepts_connections(server.url)
    assert not half.parent.exists()


def test_the_log_is_bounded(stopped: EmbeddedTestHome) -> None:
    with stopped.home.log.open("a") as log:
        log.write("x" * supervisor.MAX_LOG_BYTES)
    assert_server_works(stopped.settings)
    assert stopped.home.log.stat().st_size < supervisor.MAX_LOG_BYTES
    assert (stopped.folder / "server.log.1").exists()
    with stopped.home.log.open("a") as log, embedded.start_server(stopped.settings):
        log.write("x" * supervisor.MAX_LOG_BYTES)
        log.flush()
        wait_until(lambda: stopped.home.log.stat().st_size < supervisor.MAX_LOG_BYTES)


# Explained


def test_a_folder_of_another_version(stopped: EmbeddedTestHome) -> None:
    (stopped.home.data_folder / "PG_VERSION").write_text("99\n")
    problem = get_start_error(stopped.settings)
    assert "PostgreSQL 99 created" in problem.message
    have = binaries.choose_postgres_binaries(stopped.settings, None).version
    assert str(have) in problem.message
    assert "HOLDFAST_PG_BIN" in str(problem)


def test_a_version_that_cannot_be_read(stopped: EmbeddedTestHome) -> None:
    (stopped.home.data_folder / "PG_VERSION").write_text("what\n")
    assert "PG_VERSION" in get_start_error(stopped.settings).message


def test_a_cluster_keeps_its_version(stopped: EmbeddedTestHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best provider is not taken when another one has the version of the cluster."""
    real = binaries.choose_postgres_binaries(stopped.settings, None)
    newer = replace(real, folder=Path("/nowhere"), version=real.version + 1)
    monkeypatch.setattr(binaries, "iterate_postgres_binaries", lambda _: iter([newer, real]))
    assert_server_works(stopped.settings)


def test_a_folder_that_is_not_ours(here: EmbeddedTestHome) -> None:
    (here.folder / "data").mkdir(parents=True)
    (here.folder / "data" / "thesis.txt").write_text("all I have")
    assert "is not a PostgreSQL data folder" in get_start_error(here.settings).message
    with pytest.raises(EmbeddedDatabaseError, match="is not a PostgreSQL data folder"):
        embedded.reset_server(here.settings)
    assert (here.folder / "data" / "thesis.txt").read_text() == "all I have"


def test_a_folder_that_cannot_be_written(here: EmbeddedTestHome) -> None:
    assert "/proc/" in get_start_error(replace(here.settings, home=Path("/proc/holdfast"))).message


def test_a_home_that_is_a_file(here: EmbeddedTestHome) -> None:
    here.settings.home.write_text("")
    assert str(here.settings.home) in get_start_error(here.settings).message


def test_programs_that_are_not_there(here: EmbeddedTestHome) -> None:
    wrong = replace(here.settings, pg_bin=Path("/nowhere"))
    assert "HOLDFAST_PG_BIN is /nowhere" in get_start_error(wrong).message
    assert not (here.folder / "data").exists()


def test_nothing_to_start_with(here: EmbeddedTestHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "_iterate_candidate_folders", lambda: iter(()))
    fix = get_start_error(replace(here.settings, pg_bin=None)).fix
    assert fix is not None
    ways = fix.splitlines()[1:]
    assert len(ways) == 3
    assert "pip install 'holdfast[embedded]'" in ways[0]
    assert "apt-get install postgresql" in ways[1]
    assert "DATABASE_URL=" in ways[2]


def start_with_file_size_limit(settings: Settings, largest_file: int) -> str:
    """What a start says in a process that may not write files beyond a size, as on a disk that is full."""
    done = subprocess.run(
        [sys.executable, "-c", USER_PROCESS_CODE, str(settings.home)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file)),
    )
    assert done.returncode != 0
    return done.stderr.splitlines()[-1]


def test_no_room_to_make_a_cluster(here: EmbeddedTestHome) -> None:
    output = start_with_file_size_limit(here.settings, 100_000)
    assert "initdb failed" in output
    assert not list(here.folder.glob("data*"))
    with embedded.start_server(here.settings) as server:
        assert accepts_connections(server.url)


def test_no_room_to_start(stopped: EmbeddedTestHome) -> None:
    output = start_with_file_size_limit(stopped.settings, 0)
    assert "EmbeddedDatabaseError" in output
    assert_server_works(stopped.settings)


def test_a_setting_that_postgresql_does_not_know(stopped: EmbeddedTestHome) -> None:
    with pytest.raises(EmbeddedDatabaseError, match="no_such_setting"):
        embedded.start_server(stopped.settings, options={"no_such_setting": "1"})
    assert_server_works(stopped.settings)


# Root, whose server runs as nobody


@pytest.fixture
def private() -> Generator[EmbeddedTestHome]:
    """A home that nobody but its owner can reach."""
    with temporary_home("private/home") as new_place:
        parent = new_place.settings.home.parent
        parent.mkdir()
        parent.chmod(0o700)
        try:
            yield new_place
        finally:
            if new_place.settings.home.exists():
                embedded.reset_server(new_place.settings)


@pytest.mark.skipif(not AS_ROOT, reason="only root's server runs as another account")
def test_root_in_a_private_folder(private: EmbeddedTestHome) -> None:
    with embedded.start_server(private.settings) as server:
        query(server.url, "create table seven as select 7 as id")
        assert private.home.data_folder == private.home.data_folder_outside_home
        assert str(private.home.data_folder_outside_home) in private.home.location.read_text()
        assert private.home.data_folder_outside_home.stat().st_uid != 0
    embedded.stop_server(private.settings)
    assert_server_works(private.settings)
    assert (private.settings.home.parent.stat().st_mode & 0o777) == 0o700
    outside = private.home.data_folder_outside_home
    embedded.reset_server(private.settings)
    assert not outside.parent.exists()


@pytest.mark.skipif(not AS_ROOT, reason="only root's server runs as another account")
def test_root_moves_copies_and_deletes_a_private_home(private: EmbeddedTestHome) -> None:
    with embedded.start_server(private.settings) as server:
        query(server.url, "create table seven as select 7 as id")
        embedded.stop_server(private.settings)
    moved = replace(private.settings, home=private.settings.home.with_name("moved"))
    private.settings.home.rename(moved.home)
    assert_server_works(moved)
    copied = replace(private.settings, home=private.settings.home.with_name("copied"))
    shutil.copytree(moved.home, copied.home)
    assert "is a copy of" in get_start_error(copied).message
    shutil.rmtree(moved.home)
    with embedded.start_server(moved) as server:
        assert query(server.url, "select to_regclass('seven')") == [(None,)]
    embedded.reset_server(moved)


@pytest.mark.skipif(not AS_ROOT, reason="only root's server runs as another account")
def test_root_with_programs_in_a_private_folder(
    here: EmbeddedTestHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = binaries.choose_postgres_binaries(here.settings, None)
    if (real.folder.parent / "share").exists() is False:
        pytest.skip("these programs are not in one folder")
    monkeypatch.setattr(home_module, "SHARED_STATE_FOLDER", here.settings.home.with_name("state"))
    vault = here.settings.home.with_name("vault")
    vault.mkdir(mode=0o700)
    package = real.folder.parent.parent
    shutil.copytree(package, vault / package.name, ignore=shutil.ignore_patterns("*.py", "include"))
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, vault / libraries.name)
    hidden = vault / package.name / real.folder.relative_to(package)
    for _ in range(2):
        with embedded.start_server(replace(here.settings, pg_bin=hidden)) as server:
            assert accepts_connections(server.url)
        embedded.stop_server(here.settings)
    assert vault.stat().st_mode & 0o777 == 0o700
    assert len(list(home_module.SHARED_STATE_FOLDER.iterdir())) == 1
