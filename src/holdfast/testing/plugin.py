"""The pytest plug-in: the fixture `hf`, on a PostgreSQL that is started for the run and forgotten after it.

The server is the embedded one, or with `--holdfast-url` (or `holdfast_url` in pytest's configuration) one of
yours, where the databases of the tests are made and dropped. DATABASE_URL is not looked at: it may be the
real one. With pytest-xdist all processes share one server. Nothing starts before a test asks for `hf`.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib
import inspect
import shutil
import sys
import tempfile
import uuid
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Any, Final, cast

import pytest

from holdfast import settings as settings_module
from holdfast.client import Client
from holdfast.engine import embedded, scratch
from holdfast.engine.connection import Database, connected
from holdfast.settings import Secret, Settings
from holdfast.testing.harness import Holdfast

try:
    import pytest_asyncio
except ImportError:  # the fixture says so when it is asked for
    pytest_asyncio = cast("Any", None)

HOME: Final = pytest.StashKey[Path]()
# Faster, and no test pulls the plug of the machine.
OPTIONS: Final = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "200",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("holdfast")
    group.addoption(
        "--holdfast-url", help="A PostgreSQL to make test databases on, instead of the embedded one."
    )
    parser.addini("holdfast_url", "A PostgreSQL to make test databases on, instead of the embedded one.")
    parser.addini("holdfast_app", "Modules whose tasks hf.drain() runs.", type="args")


def pytest_configure(config: pytest.Config) -> None:
    given = getattr(config, "workerinput", {}).get("holdfast_home")
    name = f"holdfast-pytest-{uuid.uuid4().hex[:12]}"
    config.stash[HOME] = Path(given) if given else Path(tempfile.gettempdir()) / name


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Processes of xdist use the server of the one that started them."""
    node.workerinput["holdfast_home"] = str(node.config.stash[HOME])


def pytest_unconfigure(config: pytest.Config) -> None:
    home = config.stash.get(HOME, None)
    if home is None or hasattr(config, "workerinput") or not home.exists():
        return
    settings = _settings(config)
    if settings.database_url is not None:
        asyncio.run(scratch.drop(settings.database_url, _template_name(home), settings))
    else:
        embedded.stop(settings)
    shutil.rmtree(home, ignore_errors=True)


def _settings(config: pytest.Config) -> Settings:
    url = config.getoption("holdfast_url") or config.getini("holdfast_url")
    said: dict[str, object] = {"home": str(config.stash[HOME]), "statement_cache": "on"}
    if url:
        said["database_url"] = url
    return settings_module.load(said, environ={}, folder=Path(tempfile.gettempdir()))


def _template_name(home: Path) -> str:
    return f"hf_{home.name.rpartition('-')[2]}_template"


@pytest.fixture(scope="session")
def hf_settings(pytestconfig: pytest.Config) -> Settings:
    home = pytestconfig.stash[HOME]
    home.mkdir(mode=0o755, parents=True, exist_ok=True)
    return _settings(pytestconfig)


@pytest.fixture(scope="session")
def hf_prepare() -> Callable[[Any], Any] | str | None:
    """Yours to define: SQL, or a function of a connection, that makes your own tables in the template."""
    return None


@pytest.fixture(scope="session")
def hf_server(hf_settings: Settings) -> Generator[Secret]:
    if hf_settings.database_url is not None:
        yield hf_settings.database_url
        return
    server = embedded.start(hf_settings, options=OPTIONS)
    yield server.url
    server.release()


@pytest.fixture(scope="session")
def hf_template(hf_server: Secret, hf_settings: Settings, hf_prepare: Any) -> str:
    """A database with the engine and your own tables, of which each test gets a copy."""
    name = _template_name(hf_settings.home)
    with (hf_settings.home / "template.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = hf_settings.home / "template.made"
        if not made.exists():
            # In a thread, because a loop may run in this one.
            _in_thread(lambda: _make_template(hf_server, name, hf_settings, hf_prepare))
            made.touch()
    return name


async def _make_template(server: Secret, name: str, settings: Settings, prepare: Any) -> None:
    await scratch.make_template(server, name, settings)
    if prepare is None:
        return
    async with connected(scratch.on_database(server, name), settings) as connection:
        done = await connection.execute(prepare) if isinstance(prepare, str) else prepare(connection)
        if inspect.isawaitable(done):
            await done


def _in_thread(work: Callable[[], Any]) -> None:
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(work())).result()


async def _hf(
    hf_server: Secret,
    hf_template: str,
    hf_settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    pytestconfig: pytest.Config,
) -> AsyncGenerator[Holdfast]:
    """The real engine on a database of this test's own, a clock to move, and your tasks run in the test."""
    name = f"hf_{uuid.uuid4().hex[:16]}"
    await scratch.create(hf_server, name, hf_settings, template=hf_template)
    hf = Holdfast(scratch.on_database(hf_server, name), hf_settings)
    for app in pytestconfig.getini("holdfast_app"):
        hf.use(importlib.import_module(app))
    _redirect_clients(hf, monkeypatch)
    yield hf
    await hf.close()
    await scratch.drop(hf_server, name, hf_settings)


def _redirect_clients(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients without an address, as applications make them at import time, go to the test's database."""
    opened = Client.open

    async def open(client: Client) -> Database:  # noqa: A001
        own = client._url  # pyright: ignore[reportPrivateUsage]
        return await opened(client) if own not in (None, hf.url) else hf.database()

    monkeypatch.setattr(Client, "open", open)


def _hf_without_asyncio() -> None:
    raise pytest.UsageError("The fixture hf needs pytest-asyncio: pip install pytest-asyncio.")


if "pytest_asyncio" in sys.modules and pytest_asyncio is not None:
    hf = pytest_asyncio.fixture(_hf, name="hf")
else:
    hf = pytest.fixture(_hf_without_asyncio, name="hf")
