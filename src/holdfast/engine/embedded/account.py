"""Who the server runs as. PostgreSQL refuses root, so root's server runs as `nobody`.

No user is made and no folder that exists is opened up. What `nobody` cannot reach, because the project or the
virtual environment is under a private folder, gets a place below /var/lib/holdfast instead.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.engine.embedded.home import Home
from holdfast.errors import EmbeddedError

if sys.platform != "win32":
    import pwd

PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH", "TMPDIR")


@dataclass(frozen=True)
class Account:
    uid: int
    gid: int

    @property
    def is_us(self) -> bool:
        return self.uid == os.geteuid()

    def _options(self) -> dict[str, Any]:
        """Become this account, with nothing of ours but what a server needs."""
        become: dict[str, Any] = (
            {} if self.is_us else {"user": self.uid, "group": self.gid, "extra_groups": []}
        )
        return {"env": environment(), "cwd": "/", "umask": 0o077, **become}

    def may(self, test: str, path: Path) -> bool:
        """Ask the system, as that account, instead of guessing from modes: there are ACLs and mounts."""
        return self.run(["/bin/sh", "-c", f'test {test} "$1"', "sh", os.fspath(path)]).returncode == 0

    def run(self, command: Sequence[str], text: str | None = None) -> subprocess.CompletedProcess[bytes]:
        """Run a program to its end as this account, feeding it `text`."""
        done: subprocess.CompletedProcess[bytes] = subprocess.run(
            command, input=(text or "").encode(), capture_output=True, check=False, **self._options()
        )
        return done

    def own(self, path: Path) -> None:
        if not self.is_us:
            os.chown(path, self.uid, self.gid)


def environment() -> dict[str, str]:
    """No PG* variable of ours may steer the server, and its messages are read, so they are English."""
    ours = os.environ  # house: environment (passed on, not read)
    kept = {name: ours[name] for name in PASSED_ON if name in ours}
    return {"PATH": os.defpath, **kept, "LC_ALL": "C", "TZ": "UTC"}


def account_for(home: Home) -> Account:
    """Ourselves; or, for root, whoever else owns the cluster or its home, and `nobody` if root does."""
    if os.geteuid() != 0:
        check_owner(home)
        return Account(os.geteuid(), os.getegid())
    for folder in (home.data_folder, home.folder):
        if folder.exists() and (owner := folder.stat()).st_uid != 0:
            return Account(owner.st_uid, owner.st_gid)
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        return Account(65534, 65534)
    return Account(nobody.pw_uid, nobody.pw_gid)


def check_owner(home: Home) -> None:
    """An ordinary user cannot use what another one, or root, has made."""
    for path in (home.folder, home.data_folder):
        if os.geteuid() != 0 and path.exists() and path.stat().st_uid != os.geteuid():
            raise EmbeddedError(
                f"{path} belongs to {_name(path.stat().st_uid)}, and this is {_name(os.geteuid())}.",
                fix="Run as its owner, choose another folder with HOLDFAST_HOME, or set DATABASE_URL.",
            )


def _name(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def adopt_files(folder: Path, account: Account) -> bool:
    """Give a cluster that root copied back to the server's account. Whether that was necessary."""
    if account.is_us or folder.stat().st_uid == account.uid:
        return False
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.chown(Path(parent, name), account.uid, account.gid, follow_symlinks=False)
    account.own(folder)
    return True


def reachable_folder(home: Home, account: Account) -> Path:
    """Where a new cluster goes: inside the home if the account gets there."""
    if account.is_us or account.may("-x", home.folder):
        return home.inside
    place = home.outside
    make_public(place.parent)
    if not account.may("-x", place.parent):
        raise EmbeddedError(
            f"The server would run as {_name(account.uid)}, which reaches neither {home.folder} nor {place}.",
            fix="Run as an ordinary user, choose a reachable folder with HOLDFAST_HOME, or set DATABASE_URL.",
        )
    home.note_location()
    return place  # what may be there is of a home that was deleted


def make_public(folder: Path) -> None:
    """Make missing folders, passable for everybody; leave existing ones as they are."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir()
        place.chmod(0o755)


def readable_copy(source: Path, target: Path) -> None:
    """A copy of a tree that every account can read, complete or not there at all."""
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("include", "__pycache__"))
    for parent, _, files in os.walk(target):
        Path(parent).chmod(0o755)
        for name in files:
            path = Path(parent, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
