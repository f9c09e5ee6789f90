"""The operating-system account of the server. PostgreSQL refuses to run as root, so the server of root runs
as `nobody`.

No user is created, and the permissions of existing folders do not change. If `nobody` cannot reach the
project or the virtual environment because it is under a private folder, files go to /var/lib/holdfast
instead.
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

from holdfast.engine.embedded.home import EmbeddedHome
from holdfast.errors import EmbeddedDatabaseError

if sys.platform != "win32":
    import pwd

PASSED_ENVIRONMENT_VARIABLES = (
    "PATH",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "DYLD_FALLBACK_LIBRARY_PATH",
    "TMPDIR",
)


@dataclass(frozen=True)
class ServerOsAccount:
    """The user and group that the server runs as."""

    uid: int
    gid: int

    @property
    def is_current_user(self) -> bool:
        """Whether this process runs as the same user."""
        return self.uid == os.geteuid()

    def _subprocess_options(self) -> dict[str, Any]:
        """Keyword arguments for `subprocess` that run a program as this account with a clean environment."""
        switch: dict[str, Any] = (
            {} if self.is_current_user else {"user": self.uid, "group": self.gid, "extra_groups": []}
        )
        return {"env": build_server_environment(), "cwd": "/", "umask": 0o077, **switch}

    def can_access(self, test: str, path: Path) -> bool:
        """Return whether this account passes the `test` command, such as `-x`, on a path."""
        return self.run_program(["/bin/sh", "-c", f'test {test} "$1"', "sh", os.fspath(path)]).returncode == 0

    def run_program(
        self, command: Sequence[str], text: str | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a program as this account with `text` as its input, and wait for it."""
        process: subprocess.CompletedProcess[bytes] = subprocess.run(
            command,
            input=(text or "").encode(),
            capture_output=True,
            check=False,
            **self._subprocess_options(),
        )
        return process

    def take_ownership(self, path: Path) -> None:
        """Make this account the owner of a path."""
        if not self.is_current_user:
            os.chown(path, self.uid, self.gid)


def build_server_environment() -> dict[str, str]:
    """Return the environment variables of the server: without PG* variables, with English messages."""
    current = os.environ  # house: environment (passed on, not read)
    passed = {name: current[name] for name in PASSED_ENVIRONMENT_VARIABLES if name in current}
    return {"PATH": os.defpath, **passed, "LC_ALL": "C", "TZ": "UTC"}


def choose_server_account(home: EmbeddedHome) -> ServerOsAccount:
    """Return the server's account: the current user, or for root the owner of the cluster or `nobody`."""
    if os.geteuid() != 0:
        check_home_owner(home)
        return ServerOsAccount(os.geteuid(), os.getegid())
    for folder in (home.data_folder, home.folder):
        if folder.exists() and (owner := folder.stat()).st_uid != 0:
            return ServerOsAccount(owner.st_uid, owner.st_gid)
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        return ServerOsAccount(65534, 65534)
    return ServerOsAccount(nobody.pw_uid, nobody.pw_gid)


def check_home_owner(home: EmbeddedHome) -> None:
    """Raise EmbeddedDatabaseError if another user owns the home. Root may use every home."""
    for path in (home.folder, home.data_folder):
        if os.geteuid() != 0 and path.exists() and path.stat().st_uid != os.geteuid():
            raise EmbeddedDatabaseError(
                f"{path} belongs to {_format_user(path.stat().st_uid)}, "
                f"but you are {_format_user(os.geteuid())}.",
                fix="Run as its owner, choose another folder with HOLDFAST_HOME, or set DATABASE_URL.",
            )


def _format_user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def take_over_cluster_files(folder: Path, account: ServerOsAccount) -> bool:
    """Make the server's account the owner of a cluster that root copied. Return whether it was needed."""
    if account.is_current_user or folder.stat().st_uid == account.uid:
        return False
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.chown(Path(parent, name), account.uid, account.gid, follow_symlinks=False)
    account.take_ownership(folder)
    return True


def choose_data_folder(home: EmbeddedHome, account: ServerOsAccount) -> Path:
    """Return the folder for a new cluster: inside the home if the account can reach it."""
    if account.is_current_user or account.can_access("-x", home.folder):
        return home.data_folder_in_home
    place = home.data_folder_outside_home
    create_public_folders(place.parent)
    if not account.can_access("-x", place.parent):
        raise EmbeddedDatabaseError(
            f"The server would run as {_format_user(account.uid)}, "
            f"which cannot reach {home.folder} or {place}.",
            fix="Run as an ordinary user, choose a reachable folder with HOLDFAST_HOME, or set DATABASE_URL.",
        )
    home.write_location()
    return place  # an existing folder belongs to a home that was deleted


def create_public_folders(folder: Path) -> None:
    """Create missing folders that every account can enter. Existing folders do not change."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir()
        place.chmod(0o755)


def copy_folder_readable_by_all(source: Path, target: Path) -> None:
    """Copy a folder so that every account can read the copy."""
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("include", "__pycache__"))
    for parent, _, files in os.walk(target):
        Path(parent).chmod(0o755)
        for name in files:
            path = Path(parent, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
