"""From whatever is found in a home to a server that answers, and back to none.

All of this runs while the caller holds `start.lock`, so that there is one of it at a time.
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
from holdfast.engine.embedded import binaries, keeper, login
from holdfast.engine.embedded.account import Account, account_for, environment
from holdfast.engine.embedded.cluster import Cluster, advice, telling_line
from holdfast.engine.embedded.home import DATABASE, Home
from holdfast.engine.embedded.login import Answer
from holdfast.errors import EmbeddedError
from holdfast.settings import Secret, Settings

START_SECONDS = 60.0  # without a sign of life
RECOVERY_SECONDS = 600.0  # while the server says that it is starting up
STOP_SECONDS = 90.0
PORT_ATTEMPTS = 5
ALWAYS_THERE = "template1"
UP = {Answer.OURS, Answer.FULL}


def running(home: Home, *, wait: bool) -> Secret | None:
    """The address of a server that has a keeper and answers as ours; `wait` for one that is on its way."""
    if not home.has_keeper() or not (password := home.password) or not (port := home.port):
        return None
    url = home.url(password, port)
    answer = login.ask(url, home.tag)
    if wait and answer not in {*UP, Answer.REFUSED, Answer.NO_DATABASE}:
        _check_within_reach(home)
        answer = _last_answer(home, url)
        _check_not_hanging(home, answer)
    if answer is Answer.NO_DATABASE and wait:
        login.ensure_database(home.url(password, port, ALWAYS_THERE), DATABASE)
        answer = Answer.OURS
    return url if answer in UP else None


def launched(settings: Settings, home: Home, options: Mapping[str, str]) -> tuple[Secret, bool]:
    """Start a server, after putting right what is wrong. Its address, and whether its cluster is new."""
    if home.has_keeper():
        _recovered("a password file that was lost or replaced")
        halted(home)
    account = account_for(home)
    home.follow_move()
    home.refuse_what_is_not_ours()
    version = home.cluster_version
    programs = binaries.runnable(binaries.choose(settings, version), account)
    cluster = Cluster(home, account, programs)
    if cluster.clear_up_half_made():
        _recovered("half-made data folder")
    password = home.password
    lost = password is None
    password = password or home.new_password()
    if version is None:
        cluster.make(password)
    elif _answers_alone(cluster, password):
        return _adopted(cluster, password), False
    for what in cluster.put_right():
        _recovered(what)
    cluster.configure(options)
    if lost and version is not None:
        _recovered("lost password")
        cluster.set_password(password)
    return _started(cluster, password), version is None


def _recovered(what: str) -> None:
    telemetry.emit("database.recovered", what=what)


def _answers_alone(cluster: Cluster, password: Secret) -> bool:
    """Whether a server whose keeper was killed still serves. If it does not, it is gone afterwards."""
    deadline = time.monotonic() + RECOVERY_SECONDS
    patience = time.monotonic() + 5.0
    while cluster.postmaster():
        port = cluster.home.port
        answer = login.ask(cluster.home.url(password, port), cluster.home.tag) if port else None
        if answer in UP and keeper.says_ready(str(cluster.home.data_folder)):
            return True
        if time.monotonic() > (deadline if answer is Answer.STARTING else patience):
            _end_alone(cluster.home, cluster.account)
        time.sleep(0.05)
    return False


def _adopted(cluster: Cluster, password: Secret) -> Secret:
    _recovered("server without a keeper")
    port = cluster.home.port
    if port is None:
        raise EmbeddedError("The port of the embedded PostgreSQL is not known.", fix="Try again.")
    _spawn_keeper(cluster.plan(port))
    return cluster.home.url(password, port)


def _started(cluster: Cluster, password: Secret) -> Secret:
    home, refused = cluster.home, None
    home.trim_log()
    password_set = False
    for _ in range(PORT_ATTEMPTS):
        port = home.free_port(refused)
        first = home.url(password, port, ALWAYS_THERE)
        began_at = home.log_size
        _spawn_keeper(cluster.plan(port))
        answer = _last_answer(home, first)
        if answer in UP:
            login.ensure_database(first, DATABASE)
            return home.url(password, port)
        said = home.log_since(began_at)
        halted(home)
        if answer is Answer.REFUSED and not password_set:
            _recovered("password that does not fit")
            cluster.set_password(password)
            password_set = True
        elif "Address already in use" in said or "Address in use" in said:
            refused = port  # someone took it between our look and the server's
        else:
            raise EmbeddedError(
                f"The embedded PostgreSQL {cluster.binaries.version} in {home.folder} does not start: "
                f"{telling_line(said)}",
                fix=f"{advice(said)} The whole story is in {home.log}.",
            )
    raise EmbeddedError(
        f"The embedded PostgreSQL found no port: {PORT_ATTEMPTS} were taken by others at the last moment.",
        fix="Try again, or set DATABASE_URL to a server that runs.",
    )


def _spawn_keeper(plan: keeper.Plan) -> None:
    Path(plan.folder, "stop").unlink(missing_ok=True)
    with open(Path(plan.folder, "server.log"), "ab", opener=_private) as log:
        done = subprocess.run(
            # -I -S: no module of the project or of a virtual environment can get in its way.
            [_python(), "-I", "-S", keeper.__file__, plan.folder],
            input=json.dumps(asdict(plan)).encode(),
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env=environment(),
            check=False,
        )
    if done.returncode:
        raise EmbeddedError(
            f"The keeper of the embedded PostgreSQL could not be started (code {done.returncode}).",
            fix=f"See {plan.folder}/server.log.",
        )


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _python() -> str:
    """An interpreter. `sys.executable` may be a program that has Python inside, like a web server."""
    if "python" in Path(sys.executable or "").name.lower():
        return sys.executable
    return str(Path(sys.base_exec_prefix, "bin", f"python{sys.version_info.major}"))


def _last_answer(home: Home, url: Secret) -> Answer:
    """What the server says once it is up, or once there is no hope left."""
    silent_until = time.monotonic() + START_SECONDS
    starting_until = time.monotonic() + RECOVERY_SECONDS
    pause = 0.005
    while True:
        kept = home.has_keeper()  # looked up before asking: a keeper that has just gone may leave an answer
        answer = login.ask(url, home.tag)
        if answer in {*UP, Answer.REFUSED, Answer.NO_DATABASE} or not kept:
            return answer
        if time.monotonic() > (starting_until if answer is Answer.STARTING else silent_until):
            return answer
        time.sleep(pause)
        pause = min(0.1, pause * 1.5)


def _check_within_reach(home: Home) -> None:
    """Flock works across containers, loopback and process ids do not."""
    deadline = time.monotonic() + 2.0
    while home.has_keeper():
        pid = home.keeper_pid
        if pid and any(keeper.__file__ in words for _, _, words in keeper.processes(pid)):
            return
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"The embedded PostgreSQL in {home.folder} is run from another container or machine, "
                "which cannot be reached from here.",
                fix="Stop it there, choose another folder with HOLDFAST_HOME, or set DATABASE_URL.",
            )
        time.sleep(0.05)


def _check_not_hanging(home: Home, answer: Answer) -> None:
    """It may be overloaded rather than stuck, and others may be at work on it: not ours to end unasked."""
    if answer not in {*UP, Answer.REFUSED, Answer.NO_DATABASE} and home.has_keeper():
        raise EmbeddedError(
            f"The embedded PostgreSQL in {home.folder} runs, and {answer.value} for "
            f"{timedelta(seconds=START_SECONDS)}.",
            fix=f"See {home.log}, or end it with `holdfast db stop` and try again.",
        )


def stopped(home: Home) -> bool:
    """Stop the server for good, whoever uses it. Whether there was one."""
    home.keep.unlink(missing_ok=True)
    home.linger.unlink(missing_ok=True)
    return halted(home)


def halted(home: Home) -> bool:
    """End the server, to be started again. Whether there was one."""
    found = home.has_keeper()
    if found:
        home.stop.touch()
        deadline = time.monotonic() + STOP_SECONDS
        while home.has_keeper():
            if time.monotonic() > deadline:
                raise EmbeddedError(
                    f"The embedded PostgreSQL in {home.folder} does not stop.", fix=f"See {home.log}."
                )
            time.sleep(0.01)
        home.stop.unlink(missing_ok=True)
    if home.data_folder.exists():
        found = _end_alone(home, account_for(home)) or found
    return found


def _end_alone(home: Home, account: Account) -> bool:
    """End a server that has no keeper."""
    found = False
    place = (str(home.data_folder), home.tag, account.uid)
    for name, seconds in keeper.SHUTDOWN:
        deadline = time.monotonic() + seconds
        if pid := keeper.postmaster(*place):
            found = True
            keeper.send(pid, signal.Signals[name])
        while keeper.postmaster(*place) and time.monotonic() < deadline:
            time.sleep(0.02)
    return found
