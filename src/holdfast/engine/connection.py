"""Open connections and pools, and translate the driver's errors. Nothing else opens connections."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from traceback import walk_tb
from typing import Any, TypeAlias, cast

import asyncpg

from holdfast import errors
from holdfast.engine.availability import DatabaseAvailability, describe_connect_error, get_availability
from holdfast.engine.hosts import connect_to_primary, parse_hosts
from holdfast.engine.primary_change import PrimaryWatch
from holdfast.settings import Secret, Settings, redact_url

Connection: TypeAlias = "asyncpg.Connection[Any] | asyncpg.pool.PoolConnectionProxy[Any]"
PooledConnection: TypeAlias = "asyncpg.pool.PoolConnectionProxy[Any]"
Record: TypeAlias = "asyncpg.Record"

MIN_POSTGRES_MAJOR = 14  # the oldest supported major version
# Longer than the pause between polls of an idle worker, which so keeps one connection and no more.
POOL_IDLE_TIMEOUT_S = 90.0
RESERVED_RETURN_INTERVAL_S = 10.0
STATEMENT_CACHE_SIZE = 100
POOL_CLOSE_TIMEOUT_S = 2
# Modules that an error of the connection itself passes through.
OWN_MODULES = frozenset(
    {"holdfast", "asyncpg", "asyncio", "contextlib", "selectors", "socket", "ssl", "uvloop"}
)
_CONNECT_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)


class Database:
    """A connection pool for one database. The first call opens the pool."""

    def __init__(self, url: Secret, settings: Settings) -> None:
        self.url = url
        self.settings = settings
        self.availability = get_availability(url)
        self._pool: asyncpg.Pool[Any] | None = None
        self._opening = asyncio.Lock()
        # Taken from the pool and not in use: to ask the pool takes about as long as a small statement.
        self._reserved: list[PooledConnection] = []
        self._return_timer: asyncio.TimerHandle | None = None
        self._return_task: asyncio.Task[None] | None = None
        self._waiters = 0
        self._primary_watch: PrimaryWatch | None = None  # of an address with several hosts

    async def open(self) -> asyncpg.Pool[Any]:
        async with self._opening:
            if self._pool is None:
                prepare = await _can_prepare_statements(self.url, self.settings)
                with translate_driver_errors(self.url), _translate_url_errors():
                    if parse_hosts(self.url.reveal()):
                        self._primary_watch = PrimaryWatch(self.url.reveal())
                    self._pool = await asyncpg.create_pool(
                        self.url.reveal(),
                        min_size=0,
                        max_size=self.settings.pool_size,
                        max_inactive_connection_lifetime=POOL_IDLE_TIMEOUT_S,
                        reset=_rollback_open_transaction,
                        connect=cast("Any", connect_to_primary),
                        **_build_connect_options(self.settings, prepare=prepare),
                    )
            return self._pool

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if self._primary_watch is not None:
            self._primary_watch.close()
        if pool is not None:
            await self._return_reserved(pool)
            await pool.close()

    def terminate(self) -> None:
        """Close the pool at once, without waiting for connections in use."""
        pool, self._pool = self._pool, None
        self._reserved.clear()
        if pool is not None:
            pool.terminate()

    def abandon(self) -> None:
        """Disconnect after the event loop was closed, when nothing can be awaited any more.

        The driver closes connections only through their loop, so this shuts down the sockets themselves.
        """
        pool: Any = self._pool
        self._pool = None
        for holder in getattr(pool, "_holders", ()):
            transport = getattr(getattr(holder, "_con", None), "_transport", None)
            if transport is not None:
                with suppress(OSError):
                    transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    async def __aenter__(self) -> Database:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Connection]:
        """Borrow a connection from the pool, without a transaction."""
        pool = self._pool or await self.open()
        with translate_driver_errors(self.url):
            connection = await self._take_connection(pool)
            timer = self._primary_watch.watch_call(connection) if self._primary_watch else None
            try:
                yield connection
            except BaseException:
                await pool.release(connection)
                raise
            finally:
                if timer is not None:
                    timer.cancel()
            if self.availability.is_unreachable:
                self.availability.record_success()
            if _is_idle(connection) and not self._waiters and self._pool is pool:
                self._reserved.append(connection)
                self._return_reserved_later(pool)
            else:
                await pool.release(connection)

    async def _take_connection(self, pool: asyncpg.Pool[Any]) -> PooledConnection:
        while self._reserved:
            connection = self._reserved.pop()
            if _is_idle(connection):
                return connection
            await pool.release(connection)
        self._waiters += 1
        try:
            with _translate_url_errors():
                return await pool.acquire(timeout=self.settings.connect_timeout.total_seconds())
        except _CONNECT_ERRORS as error:
            if pool.get_size() < pool.get_max_size():  # otherwise all connections of the pool are in use
                self.availability.record_failure(error)
            raise
        finally:
            self._waiters -= 1

    def _return_reserved_later(self, pool: asyncpg.Pool[Any]) -> None:
        """Schedule the return of reserved connections, so that the pool can close idle connections."""
        if self._return_timer is None:
            loop = asyncio.get_running_loop()
            self._return_timer = loop.call_later(RESERVED_RETURN_INTERVAL_S, self._return_reserved_soon, pool)

    def _return_reserved_soon(self, pool: asyncpg.Pool[Any]) -> None:
        self._return_task = asyncio.get_running_loop().create_task(self._return_reserved(pool))

    async def _return_reserved(self, pool: asyncpg.Pool[Any]) -> None:
        if self._return_timer is not None:
            self._return_timer.cancel()
            self._return_timer = None
        while self._reserved:
            await pool.release(self._reserved.pop())

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Connection]:
        async with self.connection() as connection, connection.transaction():
            yield connection


def _is_idle(connection: PooledConnection) -> bool:
    """Return whether the connection is open and has no open transaction."""
    try:
        return not (connection.is_closed() or connection.is_in_transaction())
    except asyncpg.InterfaceError:  # the server closed it, and the pool took it back
        return False


async def _rollback_open_transaction(connection: Connection) -> None:
    """Roll back an open transaction. It replaces the driver's reset, which costs one more round trip."""
    if connection.is_in_transaction():
        await connection.execute("rollback")


@asynccontextmanager
async def open_connection(
    url: Secret, settings: Settings, *, report_outage: bool = False
) -> AsyncGenerator[Connection]:
    """Open a connection outside the pool, for short commands and for LISTEN.

    A short command shows the error itself. With `report_outage` the outage is an event, as for the pool.
    """
    options = _build_connect_options(settings, prepare=settings.statement_cache == "on")
    with translate_driver_errors(url):
        recorder = _record_availability(get_availability(url)) if report_outage else nullcontext()
        with _translate_url_errors(), recorder:
            connection = await connect_to_primary(url.reveal(), **options)
        try:
            yield connection
        finally:
            await connection.close(timeout=POOL_CLOSE_TIMEOUT_S)


@contextmanager
def _record_availability(availability: DatabaseAvailability) -> Generator[None]:
    """Record whether the attempt to connect inside the block succeeds."""
    try:
        yield
    except _CONNECT_ERRORS as error:
        availability.record_failure(error)
        raise
    availability.record_success()


async def _can_prepare_statements(url: Secret, settings: Settings) -> bool:
    """Return whether prepared statements stay in the session that prepared them.

    A transaction pooler may send the next statement to another server process, which does not know them. Such
    a pooler is recognized by its process id: the id from the login is not that of the process that responds.
    """
    if settings.statement_cache != "auto":
        return settings.statement_cache == "on"
    async with open_connection(url, settings, report_outage=True) as connection:
        backend_pid = await connection.fetchval("select pg_catalog.pg_backend_pid()")
        return bool(connection.get_server_pid() == backend_pid)


def _build_connect_options(settings: Settings, *, prepare: bool) -> dict[str, Any]:
    return {
        "timeout": settings.connect_timeout.total_seconds(),
        "command_timeout": settings.call_timeout.total_seconds(),
        "statement_cache_size": STATEMENT_CACHE_SIZE if prepare else 0,
        "server_settings": {"application_name": "holdfast"},
    }


def is_error_of_caller(error: BaseException) -> bool:
    """Return whether an error comes from the code in a block with a connection, not from the driver.

    `async with client.transaction()` runs the caller's code, which may fail to reach a mail server.
    """
    modules = [
        frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in walk_tb(error.__traceback__)
    ]
    return "asyncpg" not in modules and not OWN_MODULES.issuperset(modules)


@contextmanager
def translate_driver_errors(url: Secret) -> Generator[None]:
    """Convert driver errors inside the block to exceptions of `holdfast.errors`."""
    try:
        yield
    except asyncpg.PostgresError as error:
        raise translate_error(error, url) from error
    except (asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        if isinstance(error, ValueError):  # the driver cannot encode an argument
            raise errors.InvalidError(f"A value cannot be used: {error}.") from error
        # The driver raises InternalClientError if a connection ends between two messages of one statement.
        raise errors.DatabaseUnavailableError(
            f"The connection to PostgreSQL at {_format_server_address(url)} was closed."
        ) from error
    except (OSError, TimeoutError) as error:
        if is_error_of_caller(error):
            raise
        reason = describe_connect_error(error)
        raise errors.DatabaseUnavailableError(
            f"PostgreSQL at {_format_server_address(url)} cannot be reached: {reason}.",
            fix="Check DATABASE_URL and that the server runs, or unset it to use the embedded one.",
        ) from error


@contextmanager
def _translate_url_errors() -> Generator[None]:
    """Translate the driver's errors about an invalid URL. Used only around connecting."""
    try:
        yield
    except (ValueError, OverflowError) as error:
        # Only the driver's own messages are shown: others may quote a part of the password.
        detail = f": {error}" if isinstance(error, asyncpg.exceptions.ClientConfigurationError) else ""
        raise errors.DatabaseLoginError(
            f"DATABASE_URL is not a valid URL{detail}.",
            fix="Write it as postgresql://user:password@host:5432/database, with / ? # @ and % in the "
            "password written as %2F %3F %23 %40 and %25.",
        ) from None


def _format_server_address(url: Secret) -> str:
    return redact_url(url.reveal())


def was_rolled_back(error: BaseException) -> bool:
    """Return whether the server reported the error, so that nothing of the statement was committed."""
    return not isinstance(error, errors.DatabaseUnavailableError) and isinstance(
        error.__cause__, asyncpg.PostgresError
    )


def translate_error(error: asyncpg.PostgresError, url: Secret) -> errors.HoldfastError:  # noqa: C901
    code = error.sqlstate or ""
    message = str(error.args[0] if error.args else error)
    translated = errors.build_error_from_sqlstate(
        code, message, hint=getattr(error, "hint", None), field=_find_error_field(error)
    )
    if translated:
        return translated
    input_error = _translate_input_error(code, message)
    if input_error:
        return input_error
    where = _format_server_address(url)
    if code == "25006":
        return errors.DatabaseReadOnlyError(
            f"The database at {where} is read-only: {message}.",
            fix="It is probably a standby: point DATABASE_URL at the primary.",
        )
    if code == "42501":
        return errors.DatabasePermissionError(
            f"The role at {where} may not do this: {message}.",
            fix="Run it as the owner of the database, or ask for the right.",
        )
    if code in {"53100", "53200", "53300"}:
        return errors.DatabaseFullError(
            f"The database at {where} is out of disk space, memory or connections: {message}.",
            fix="Free disk space or connections on the server and try again.",
        )
    if code == "3D000":
        return errors.DatabaseLoginError(
            f"The server at {where} has no such database: {message}.", fix="Create it with createdb."
        )
    if code == "3F000" and '"holdfast"' in message:
        return errors.SchemaMissingError(
            f"Holdfast is not installed at {where}.", fix="Run: holdfast migrate"
        )
    if code == "42883" and "holdfast." in message:
        return errors.SchemaOutdatedError(
            f"The schema at {where} is older than this code: {message}.", fix="Run: holdfast migrate"
        )
    if code in {"28P01", "28000"}:
        return errors.DatabaseLoginError(
            f"PostgreSQL at {where} refused the login: {message}.",
            fix="Check the user and the password in DATABASE_URL, and pg_hba.conf on the server.",
        )
    if code.startswith(("08", "57P")):
        return errors.DatabaseUnavailableError(
            f"PostgreSQL at {where} refused the connection: {message}.",
            fix="Wait until the server has started, and see its log.",
        )
    if code.startswith(("21", "23", "P0")):  # cardinality, constraints, and what a function raised
        return errors.DatabaseRefusedError(f"The database refused the data with {code}: {message}.")
    # The rest are conflicts with other transactions, timeouts, and a schema that just changes.
    return errors.DatabaseError(f"The database answered {code}: {message}.")


def is_data_error(error: BaseException) -> bool:
    """Return whether the database refused the data of a call, so that the same call fails again.

    False for errors of the connection, of privileges, of the schema and of concurrent transactions.
    """
    return isinstance(error, _DATA_ERRORS)


_DATA_ERRORS = (
    errors.ConflictError,
    errors.DatabaseRefusedError,
    errors.InvalidError,
    errors.LeaseLostError,
    errors.NotFoundError,
    errors.QuotaExceededError,
    errors.RefusedError,
    errors.TooLargeError,
    errors.TooManyRequestsError,
)


def is_permission_error(error: BaseException) -> bool:
    """Return whether a driver error means that the role lacks a privilege."""
    return isinstance(error, asyncpg.InsufficientPrivilegeError)


def _translate_input_error(code: str, message: str) -> errors.HoldfastError | None:
    """Return InvalidError for a value that the database cannot parse or store, or None."""
    if code.startswith("22") or code in {"23502", "23514"}:
        return errors.InvalidError(f"A value cannot be used: {message}.")
    if code == "23505":
        return errors.ConflictError("A row with the same key already exists.")
    if code.startswith("54"):
        return errors.TooLargeError("A value is too long or too complex.")
    return None


def _find_error_field(error: asyncpg.PostgresError) -> str | None:
    """Return the name of the invalid argument, which SQL functions report as the column of an error."""
    return getattr(error, "column_name", None)
