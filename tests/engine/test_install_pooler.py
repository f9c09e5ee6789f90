"""Through PgBouncer in transaction mode: installing, and noticing that it is there."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from holdfast.engine import checks, install, schema
from holdfast.engine.connection import connected
from holdfast.engine.schema import Migration, SchemaFiles
from holdfast.errors import DatabaseAwayError
from holdfast.settings import Secret, Settings
from holdfast.testing import eventually

pytestmark = pytest.mark.slow
FIND = Path(__file__).parents[2] / "scripts" / "pgbouncer.sh"


@pytest.fixture(scope="module")
def program() -> str:
    """In CI it is fetched and the tests must run; elsewhere they run where it is found."""
    options = [] if os.environ.get("CI") else ["--find"]
    found = subprocess.run([FIND, *options], capture_output=True, text=True, check=False)
    if found.returncode and options:
        pytest.skip("no PgBouncer here; scripts/pgbouncer.sh fetches it")
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@pytest.fixture(params=["transaction", "session"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pooled(program: str, empty_url: Secret, mode: str) -> Generator[Secret]:
    """The same database, through a pooler; small, so that connections are shared at once."""
    there = urlsplit(empty_url.reveal())
    port = free_port()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-pooler-"))
    config = folder / "pgbouncer.ini"
    login = f"user={there.username} password={there.password or ''}"
    config.write_text(
        f"[databases]\n* = host={there.hostname} port={there.port} {login}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        f"pool_mode = {mode}\ndefault_pool_size = 12\nauth_file = {folder}/users\nlogfile = {folder}/log\n"
    )
    (folder / "users").touch()
    become = {"user": "nobody", "extra_groups": []} if os.geteuid() == 0 else {}
    if become:
        for path in (folder, *folder.iterdir()):
            shutil.chown(path, "nobody")
    server = subprocess.Popen([program, str(config)], stderr=subprocess.DEVNULL, **become)  # type: ignore[call-overload]
    yield Secret(urlunsplit(there._replace(netloc=f"{there.username}:any@127.0.0.1:{port}")))
    server.terminate()
    server.wait(20)
    shutil.rmtree(folder)


async def answers(url: Secret, settings: Settings) -> bool:
    try:
        async with connected(url, settings):
            return True
    except DatabaseAwayError:
        return False


async def test_several_at_once_with_an_index_built_concurrently(
    pooled: Secret, empty_url: Secret, settings: Settings
) -> None:
    await eventually(lambda: answers(pooled, settings), what="the pooler answers")
    index = Migration(
        schema.packaged().latest + 1,
        "index",
        "create index concurrently migrations_name on holdfast.migrations (name);",
        concurrently=True,
    )
    files = SchemaFiles((*schema.packaged().migrations, index), schema.packaged().functions)
    done = await asyncio.gather(*(install.migrate(pooled, settings, files=files) for _ in range(6)))
    assert sorted(v for each in done for v in each.versions) == list(range(1, index.version + 1))
    assert (await install.status(pooled, settings, files=files)).current
    async with connected(empty_url, settings) as connection:
        assert await connection.fetchval(
            "select indisvalid from pg_index where indexrelid = 'holdfast.migrations_name'::regclass"
        )
        await install.verify(connection, files=files)


async def test_doctor_sees_through_it(pooled: Secret, mode: str, settings: Settings) -> None:
    await eventually(lambda: answers(pooled, settings), what="the pooler answers")
    await install.migrate(pooled, settings)
    (finding,) = [f for f in await checks.examine(pooled, settings) if f.check == "pooler"]
    assert finding.level == ("warn" if mode == "transaction" else "ok")
    assert ("transaction pooler" in finding.text) is (mode == "transaction")
