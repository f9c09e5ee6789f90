"""Start and stop the embedded server of a home. Repair the home first if needed.

Callers hold `start.lock`, so only one process runs this code at a time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

from holdfast import telemetry
from holdfast.engine.embedded import binaries, login_probe, supervisor
from holdfast.engine.embedded.account import ServerOsAccount, build_server_environment, choose_server_account
from holdfast.engine.embedded.cluster import PostgresCluster, find_decisive_line, suggest_fix
from holdfast.engine.embedded.home import EMBEDDED_DATABASE_NAME, EmbeddedHome
from holdfast.engine.embedded.login_probe import LoginResult
from holdfast.errors import EmbeddedDatabaseError
from holdfast.settings import Secret, Settings

START_TIMEOUT_S = 60.0  # without any response
RECOVERY_TIMEOUT_S = 600.0  # while the server reports that it is starting up
STOP_TIMEOUT_S = 90.0
MAX_PORT_ATTEMPTS = 5
MAINTENANCE_DATABASE = "template1"
ACCEPTING_LOGIN_RESULTS = {LoginResult.OURS, LoginResult.FULL}


def find_running_server_url(home: EmbeddedHome, *, wait: bool) -> Secret | None:
    """Return the URL of the running server, or None. With `wait`, wait for a server that is starting."""
    if not home.has_supervisor() or not (password := home.password) or not (port := home.port):
        return None
    url = home.build_url(password, port)
    result = login_probe.probe_login(url, home.cluster_name)
    if wait and result not in {*ACCEPTING_LOGIN_RESULTS, LoginResult.REFUSED, LoginResult.NO_DATABASE}:
        _check_same_machine(home)
        result = _wait_for_login(home, url)
        _check_server_responds(home, result)
    if result is LoginResult.NO_DATABASE and wait:
        login_probe.ensure_database_exists(
            home.build_url(password, port, MAINTENANCE_DATABASE), EMBEDDED_DATABASE_NAME
        )
        result = LoginResult.OURS
    return url if result in ACCEPTING_LOGIN_RESULTS else None


def launch_server(settings: Settings, home: EmbeddedHome, options: Mapping[str, str]) -> tuple[Secret, bool]:
    """Repair the home, start its server, and return the URL and whether the cluster is new."""
    if home.has_supervisor():
        _emit_recovery_event("a password file that was lost or replaced")
        end_server(home)
    account = choose_server_account(home)
    home.follow_moved_home()
    home.refuse_foreign_folder()
    version = home.cluster_version
    programs = binaries.make_postgres_binaries_runnable(
        binaries.choose_postgres_binaries(settings, version), account
    )
    cluster = PostgresCluster(home, account, programs)
    if cluster.remove_incomplete_folders():
        _emit_recovery_event("incomplete data folder")
    password = home.password
    lost = password is None
    password = password or home.create_password()
    if version is None:
        cluster.create(password)
    elif _check_or_stop_unsupervised_server(cluster, password):
        return _adopt_server(cluster, password), False
    for what in cluster.repair():
        _emit_recovery_event(what)
    cluster.configure(options)
    if lost and version is not None:
        _emit_recovery_event("lost password")
        cluster.set_password(password)
    return _start_server_process(cluster, password), version is None


def _emit_recovery_event(what: str) -> None:
    telemetry.emit("database.stale_state_removed", what=what)


def _check_or_stop_unsupervised_server(cluster: PostgresCluster, password: Secret) -> bool:
    """Return whether a server without supervisor accepts connections. If it does not, stop it."""
    deadline = time.monotonic() + RECOVERY_TIMEOUT_S
    silent_until = time.monotonic() + 5.0
    while cluster.find_postmaster_pid():
        port = cluster.home.port
        result = (
            login_probe.probe_login(cluster.home.build_url(password, port), cluster.home.cluster_name)
            if port
            else None
        )
        if result in ACCEPTING_LOGIN_RESULTS and supervisor.is_postmaster_ready(
            str(cluster.home.data_folder)
        ):
            return True
        if time.monotonic() > (deadline if result is LoginResult.STARTING else silent_until):
            _end_server_without_supervisor(cluster.home, cluster.account)
        time.sleep(0.05)
    return False


def _adopt_server(cluster: PostgresCluster, password: Secret) -> Secret:
    _emit_recovery_event("server without a supervisor")
    port = cluster.home.port
    if port is None:
        raise EmbeddedDatabaseError("The port of the embedded PostgreSQL is unknown.", fix="Try again.")
    _spawn_supervisor(cluster.build_server_start_plan(port))
    return cluster.home.build_url(password, port)


def _start_server_process(cluster: PostgresCluster, password: Secret) -> Secret:
    home, refused = cluster.home, None
    home.trim_log()
    password_set = False
    for _ in range(MAX_PORT_ATTEMPTS):
        port = home.choose_free_port(refused)
        first = home.build_url(password, port, MAINTENANCE_DATABASE)
        log_start = home.log_size
        _spawn_supervisor(cluster.build_server_start_plan(port))
        result = _wait_for_login(home, first)
        if result in ACCEPTING_LOGIN_RESULTS:
            login_probe.ensure_database_exists(first, EMBEDDED_DATABASE_NAME)
            return home.build_url(password, port)
        log = home.read_log_since(log_start)
        end_server(home)
        if result is LoginResult.REFUSED and not password_set:
            _emit_recovery_event("wrong password")
            cluster.set_password(password)
            password_set = True
        elif "Address already in use" in log or "Address in use" in log:
            refused = port  # another program took the port after our check
        else:
            raise EmbeddedDatabaseError(
                f"The embedded PostgreSQL {cluster.binaries.version} in {home.folder} does not start: "
                f"{find_decisive_line(log)}",
                fix=f"{suggest_fix(log)} The complete log is {home.log}.",
            )
    raise EmbeddedDatabaseError(
        "The embedded PostgreSQL found no port: "
        f"other programs took {MAX_PORT_ATTEMPTS} ports before it started.",
        fix="Try again, or set DATABASE_URL to a running server.",
    )


def _spawn_supervisor(plan: supervisor.ServerStartPlan) -> None:
    Path(plan.folder, "stop").unlink(missing_ok=True)
    with open(Path(plan.folder, "server.log"), "ab", opener=_open_private_file) as log:
        process = subprocess.run(
            # -I -S: no module of the project or of a virtual environment can interfere.
            [_find_python(), "-I", "-S", supervisor.__file__, plan.folder],
            input=json.dumps(asdict(plan)).encode(),
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env=build_server_environment(),
            check=False,
        )
    if process.returncode:
        raise EmbeddedDatabaseError(
            f"The supervisor of the embedded PostgreSQL did not start (exit code {process.returncode}).",
            fix=f"See {plan.folder}/server.log.",
        )


def _open_private_file(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _find_python() -> str:
    """Return a Python interpreter. `sys.executable` may be a program that embeds Python."""
    if "python" in Path(sys.executable or "").name.lower():
        return sys.executable
    return str(Path(sys.base_exec_prefix, "bin", f"python{sys.version_info.major}"))


def _wait_for_login(home: EmbeddedHome, url: Secret) -> LoginResult:
    """Log in repeatedly until the result is final or the timeout is reached. Return the last result."""
    silent_until = time.monotonic() + START_TIMEOUT_S
    starting_until = time.monotonic() + RECOVERY_TIMEOUT_S
    pause = 0.005
    while True:
        supervised = (
            home.has_supervisor()
        )  # before the probe: the server may outlive its supervisor for a moment
        result = login_probe.probe_login(url, home.cluster_name)
        if (
            result in {*ACCEPTING_LOGIN_RESULTS, LoginResult.REFUSED, LoginResult.NO_DATABASE}
            or not supervised
        ):
            return result
        if time.monotonic() > (starting_until if result is LoginResult.STARTING else silent_until):
            return result
        time.sleep(pause)
        pause = min(0.1, pause * 1.5)


def _check_same_machine(home: EmbeddedHome) -> None:
    """Raise EmbeddedDatabaseError if the server runs in another container, which we cannot reach."""
    deadline = time.monotonic() + 2.0
    while home.has_supervisor():
        pid = home.supervisor_pid
        if pid and any(supervisor.__file__ in words for _, _, words in supervisor.iterate_processes(pid)):
            return
        if time.monotonic() > deadline:
            raise EmbeddedDatabaseError(
                f"The embedded PostgreSQL in {home.folder} runs in another container or on another machine, "
                "which this process cannot reach.",
                fix="Stop it there, choose another folder with HOLDFAST_HOME, or set DATABASE_URL.",
            )
        time.sleep(0.05)


def _check_server_responds(home: EmbeddedHome, result: LoginResult) -> None:
    """Raise EmbeddedDatabaseError if the server does not respond. Do not stop it: it may have users."""
    if (
        result not in {*ACCEPTING_LOGIN_RESULTS, LoginResult.REFUSED, LoginResult.NO_DATABASE}
        and home.has_supervisor()
    ):
        raise EmbeddedDatabaseError(
            f"The embedded PostgreSQL in {home.folder} is running, but has not accepted connections "
            f"(it {result.value}) for "
            f"{timedelta(seconds=START_TIMEOUT_S)}.",
            fix=f"See {home.log}, or stop it with `holdfast db stop` and try again.",
        )


def stop_server_processes(home: EmbeddedHome) -> bool:
    """Stop the server and delete the files that request it to keep running. Return whether it was running."""
    home.keep.unlink(missing_ok=True)
    home.linger.unlink(missing_ok=True)
    return end_server(home)


def end_server(home: EmbeddedHome) -> bool:
    """Stop the embedded server. Return whether it was running."""
    was_running = home.has_supervisor()
    if was_running:
        home.stop.touch()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while home.has_supervisor():
            if time.monotonic() > deadline:
                raise EmbeddedDatabaseError(
                    f"The embedded PostgreSQL in {home.folder} does not stop.", fix=f"See {home.log}."
                )
            time.sleep(0.01)
        home.stop.unlink(missing_ok=True)
    if home.data_folder.exists():
        was_running = _end_server_without_supervisor(home, choose_server_account(home)) or was_running
    return was_running


def _end_server_without_supervisor(home: EmbeddedHome, account: ServerOsAccount) -> bool:
    """Stop a server that has no supervisor. Return whether it was running."""
    was_running = False
    place = (str(home.data_folder), home.cluster_name, account.uid)
    for name, seconds in supervisor.SHUTDOWN_STEPS:
        deadline = time.monotonic() + seconds
        if pid := supervisor.find_postmaster_pid(*place):
            was_running = True
            supervisor.send_signal(pid, signal.Signals[name])
        while supervisor.find_postmaster_pid(*place) and time.monotonic() < deadline:
            time.sleep(0.02)
    return was_running
