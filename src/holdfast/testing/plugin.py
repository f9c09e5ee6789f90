"""The pytest plug-in: the fixture `hf`, with a database of its own for each test.

The PostgreSQL server is the embedded one, started when the first test uses `hf` and deleted after the run.
With `--holdfast-url` (or `holdfast_url` in pytest's configuration) it is a server of yours, on which the
plug-in creates and drops databases. DATABASE_URL is not used, because it may be a production database. All
processes of pytest-xdist share one server.
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
from holdfast.client.connections import ClientConnections, LoopConnections
from holdfast.client.redirection import Redirection, redirectable_objects
from holdfast.engine import embedded, scratch
from holdfast.engine.connection import open_connection
from holdfast.settings import Secret, Settings
from holdfast.testing.harness import Holdfast

try:
    import pytest_asyncio
except ImportError:  # the fixture `hf` reports it when a test uses it
    pytest_asyncio = cast("Any", None)

HOME_DIRECTORY_KEY: Final = pytest.StashKey[Path]()
# Durability costs time, and no test survives a power failure anyway.
TEST_SERVER_OPTIONS: Final = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "200",
}


SERVER_URL_HELP: Final = (
    "Create test databases on the PostgreSQL server with this URL. Default: the embedded server."
)
ASYNCIO_MODE_ERROR: Final = (
    "This test is asynchronous, but pytest-asyncio is in strict mode and does not run it. Add this line to "
    '[tool.pytest.ini_options] in pyproject.toml: asyncio_mode = "auto". Or mark the test with '
    "@pytest.mark.asyncio."
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("holdfast")
    group.addoption("--holdfast-url", help=SERVER_URL_HELP)
    parser.addini("holdfast_url", SERVER_URL_HELP)
    parser.addini("holdfast_app", "Run the tasks of these modules in hf.drain(). Default: none.", type="args")


def pytest_configure(config: pytest.Config) -> None:
    shared_home = getattr(config, "workerinput", {}).get("holdfast_home")
    name = f"holdfast-pytest-{uuid.uuid4().hex[:12]}"
    config.stash[HOME_DIRECTORY_KEY] = (
        Path(shared_home) if shared_home else Path(tempfile.gettempdir()) / name
    )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Let the worker processes of pytest-xdist use the server of the process that started them."""
    node.workerinput["holdfast_home"] = str(node.config.stash[HOME_DIRECTORY_KEY])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail an asynchronous test with an explanation if pytest-asyncio is in strict mode."""
    if not isinstance(item, pytest.Function) or "hf" not in item.fixturenames or pytest_asyncio is None:
        return
    is_marked = any(item.get_closest_marker(name) for name in ("asyncio", "anyio"))
    if inspect.iscoroutinefunction(item.obj) and not is_marked and _get_asyncio_mode(item.config) == "strict":
        pytest.fail(ASYNCIO_MODE_ERROR, pytrace=False)


def _get_asyncio_mode(config: pytest.Config) -> str:
    return str(config.getoption("asyncio_mode", None) or config.getini("asyncio_mode"))


def pytest_unconfigure(config: pytest.Config) -> None:
    home = config.stash.get(HOME_DIRECTORY_KEY, None)
    if home is None or hasattr(config, "workerinput") or not home.exists():
        return
    settings = _load_test_settings(config)
    if settings.database_url is not None:
        asyncio.run(scratch.drop_test_database(settings.database_url, _get_template_name(home), settings))
    else:
        embedded.stop_server(settings)
    shutil.rmtree(home, ignore_errors=True)


def _load_test_settings(config: pytest.Config) -> Settings:
    url = config.getoption("holdfast_url") or config.getini("holdfast_url")
    overrides: dict[str, object] = {"home": str(config.stash[HOME_DIRECTORY_KEY]), "statement_cache": "on"}
    if url:
        overrides["database_url"] = url
    return settings_module.load_settings(overrides, environ={}, folder=Path(tempfile.gettempdir()))


def _get_template_name(home: Path) -> str:
    return f"hf_{home.name.rpartition('-')[2]}_template"


@pytest.fixture(scope="session")
def hf_settings(pytestconfig: pytest.Config) -> Settings:
    """The settings of the test run."""
    home = pytestconfig.stash[HOME_DIRECTORY_KEY]
    home.mkdir(mode=0o755, parents=True, exist_ok=True)
    return _load_test_settings(pytestconfig)


@pytest.fixture(scope="session")
def hf_prepare() -> Callable[[Any], Any] | str | None:
    """SQL, or a function of a connection, that creates your own tables. Override this fixture."""
    return None


@pytest.fixture(scope="session")
def hf_server(hf_settings: Settings) -> Generator[Secret]:
    """The URL of the PostgreSQL server of the test run."""
    if hf_settings.database_url is not None:
        yield hf_settings.database_url
        return
    server = embedded.start_server(hf_settings, options=TEST_SERVER_OPTIONS)
    yield server.url
    server.release()


@pytest.fixture(scope="session")
def hf_template(hf_server: Secret, hf_settings: Settings, hf_prepare: Any) -> str:
    """The name of the template database that each test gets a copy of."""
    name = _get_template_name(hf_settings.home)
    with (hf_settings.home / "template.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        marker = hf_settings.home / "template.created"
        if not marker.exists():
            # An event loop may be running in this thread.
            _run_in_thread(lambda: _create_template(hf_server, name, hf_settings, hf_prepare))
            marker.touch()
    return name


async def _create_template(server: Secret, name: str, settings: Settings, prepare: Any) -> None:
    await scratch.create_template_database(server, name, settings)
    if prepare is None:
        return
    async with open_connection(scratch.build_database_url(server, name), settings) as connection:
        result = await connection.execute(prepare) if isinstance(prepare, str) else prepare(connection)
        if inspect.isawaitable(result):
            await result


def _run_in_thread(work: Callable[[], Any]) -> None:
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(work())).result()


async def _create_hf(
    hf_server: Secret,
    hf_template: str,
    hf_settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    pytestconfig: pytest.Config,
) -> AsyncGenerator[Holdfast]:
    """The real engine on a database of this test, a clock that you can move, and a runner of your tasks."""
    name = f"hf_{uuid.uuid4().hex[:16]}"
    await scratch.create_test_database(hf_server, name, hf_settings, template=hf_template)
    url = scratch.build_database_url(hf_server, name)
    hf = Holdfast(url, hf_settings)
    for app in pytestconfig.getini("holdfast_app"):
        hf.use(importlib.import_module(app))
    redirection = Redirection(url, hf_settings)
    clients = ClientRedirection(hf, redirection)
    clients.install(monkeypatch)
    redirectable_objects.start(redirection)
    yield hf
    await redirectable_objects.end()
    await clients.close()
    await hf.close()
    await scratch.drop_test_database(hf_server, name, hf_settings)


class ClientRedirection:
    """Connects clients that were created without a URL to the database of the test, and to its files."""

    def __init__(self, hf: Holdfast, redirection: Redirection) -> None:
        self._hf = hf
        self._redirection = redirection
        self._by_loop: dict[asyncio.AbstractEventLoop, LoopConnections] = {}

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        original = ClientConnections._open_connections  # pyright: ignore[reportPrivateUsage]
        get_settings = cast("Any", ClientConnections.settings).fget

        def get_redirected_settings(connections: ClientConnections) -> Settings:
            settings = cast("Settings", get_settings(connections))
            is_redirected = connections._url is None  # pyright: ignore[reportPrivateUsage]
            return self._redirection.adapt_settings(settings) if is_redirected else settings

        async def open_connections(
            connections: ClientConnections, loop: asyncio.AbstractEventLoop
        ) -> LoopConnections:
            url = connections._url  # pyright: ignore[reportPrivateUsage]
            if url is not None and url.reveal() != self._hf.url:
                return await original(connections, loop)
            return self._get_test_connections()

        monkeypatch.setattr(ClientConnections, "_open_connections", open_connections)
        monkeypatch.setattr(ClientConnections, "settings", property(get_redirected_settings))

    def _get_test_connections(self) -> LoopConnections:
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            self._by_loop[loop] = LoopConnections(self._hf.database())
        return self._by_loop[loop]

    async def close(self) -> None:
        """Stop the listeners. `Holdfast.close` closes the pools."""
        current = asyncio.get_running_loop()
        for loop, connections in self._by_loop.items():
            if loop is current:
                await connections.watcher.close()
            elif loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(connections.watcher.close(), loop)
                await asyncio.wrap_future(closing)


def _fail_without_pytest_asyncio() -> None:
    raise pytest.UsageError(
        "The fixture hf needs pytest-asyncio, which is not installed: pip install 'holdfast[testing]'"
    )


if "pytest_asyncio" in sys.modules and pytest_asyncio is not None:
    hf = pytest_asyncio.fixture(_create_hf, name="hf")
else:
    hf = pytest.fixture(_fail_without_pytest_asyncio, name="hf")
