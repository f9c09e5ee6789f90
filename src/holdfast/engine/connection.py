"""The only door to the driver: connections, transactions, and the driver's errors in our words."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeAlias

import asyncpg

from holdfast import errors
from holdfast.settings import Secret, Settings, redact_url

Connection: TypeAlias = "asyncpg.Connection[Any] | asyncpg.pool.PoolConnectionProxy[Any]"
Pooled: TypeAlias = "asyncpg.pool.PoolConnectionProxy[Any]"
Record: TypeAlias = "asyncpg.Record"

OLDEST = 14  # the oldest major version that is supported
POOL_IDLE_SECONDS = 300.0
AT_HAND_SECONDS = 10.0


class Database:
    """A bounded pool of connections to one database. Opens nothing before the first call."""

    def __init__(self, url: Secret, settings: Settings) -> None:
        self.url = url
        self.settings = settings
        self._pool: asyncpg.Pool[Any] | None = None
        self._opening = asyncio.Lock()
        # Taken from the pool and not in use: asking the pool takes about as long as a small statement.
        self._at_hand: list[Pooled] = []
        self._returning: asyncio.TimerHandle | None = None
        self._tidying: asyncio.Task[None] | None = None
        self._waiting = 0

    async def open(self) -> asyncpg.Pool[Any]:
        async with self._opening:
            if self._pool is None:
                prepare = await _may_prepare(self.url, self.settings)
                with translated(self.url), _readable():
                    self._pool = await asyncpg.create_pool(
                        self.url.reveal(),
                        min_size=0,
                        max_size=self.settings.pool_size,
                        max_inactive_connection_lifetime=POOL_IDLE_SECONDS,
                        reset=_as_it_is,
                        **_options(self.settings, prepare=prepare),
                    )
            return self._pool

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await self._return(pool)
            await pool.close()

    def terminate(self) -> None:
        """Close at once, whatever goes on. For those who know that nobody will give connections back."""
        pool, self._pool = self._pool, None
        self._at_hand.clear()
        if pool is not None:
            pool.terminate()

    def abandon(self) -> None:
        """Disconnect after the event loop was closed, when nothing can be awaited in it any more.

        The driver can only close connections through their loop, so this ends the sockets themselves.
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
        """A connection of the pool, outside any transaction."""
        pool = self._pool or await self.open()
        with translated(self.url):
            connection = await self._take(pool)
            try:
                yield connection
            except BaseException:
                await pool.release(connection)
                raise
            if _is_idle(connection) and not self._waiting and self._pool is pool:
                self._at_hand.append(connection)
                self._return_later(pool)
            else:
                await pool.release(connection)

    async def _take(self, pool: asyncpg.Pool[Any]) -> Pooled:
        while self._at_hand:
            connection = self._at_hand.pop()
            if _is_idle(connection):
                return connection
            await pool.release(connection)
        self._waiting += 1
        try:
            with _readable():
                return await pool.acquire(timeout=self.settings.connect_timeout.total_seconds())
        finally:
            self._waiting -= 1

    def _return_later(self, pool: asyncpg.Pool[Any]) -> None:
        """Now and then all go back, and the pool closes those that nobody wants for long."""
        if self._returning is None:
            loop = asyncio.get_running_loop()
            self._returning = loop.call_later(AT_HAND_SECONDS, self._return_soon, pool)

    def _return_soon(self, pool: asyncpg.Pool[Any]) -> None:
        self._tidying = asyncio.get_running_loop().create_task(self._return(pool))

    async def _return(self, pool: asyncpg.Pool[Any]) -> None:
        if self._returning is not None:
            self._returning.cancel()
            self._returning = None
        while self._at_hand:
            await pool.release(self._at_hand.pop())

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Connection]:
        async with self.connection() as connection, connection.transaction():
            yield connection


def _is_idle(connection: Pooled) -> bool:
    """Open, and nobody left a transaction open in it."""
    try:
        return not (connection.is_closed() or connection.is_in_transaction())
    except asyncpg.InterfaceError:  # the server ended it, and with that the pool took it back
        return False


async def _as_it_is(connection: Connection) -> None:
    """We leave no session state behind, so a connection goes back without the round trip of a reset."""
    if connection.is_in_transaction():
        await connection.execute("rollback")


@asynccontextmanager
async def connected(url: Secret, settings: Settings) -> AsyncGenerator[Connection]:
    """One connection of its own, for short commands and for LISTEN."""
    options = _options(settings, prepare=settings.statement_cache == "on")
    with translated(url):
        with _readable():
            connection = await asyncpg.connect(url.reveal(), **options)
        try:
            yield connection
        finally:
            await connection.close(timeout=2)


async def _may_prepare(url: Secret, settings: Settings) -> bool:
    """Whether prepared statements stay where they were made.

    A transaction pooler hands the next statement to another server process, which knows nothing of them. It
    gives itself away: the process number it told at the login is not that of the process that answers.
    """
    if settings.statement_cache != "auto":
        return settings.statement_cache == "on"
    async with connected(url, settings) as connection:
        answering = await connection.fetchval("select pg_catalog.pg_backend_pid()")
        return bool(connection.get_server_pid() == answering)


def _options(settings: Settings, *, prepare: bool) -> dict[str, Any]:
    return {
        "timeout": settings.connect_timeout.total_seconds(),
        "command_timeout": settings.call_timeout.total_seconds(),
        "statement_cache_size": 100 if prepare else 0,
        "server_settings": {"application_name": "holdfast"},
    }


@contextmanager
def translated(url: Secret) -> Generator[None]:
    """Raise our exceptions instead of the driver's."""
    try:
        yield
    except asyncpg.PostgresError as problem:
        raise translate(problem, url) from problem
    except (asyncpg.InterfaceError, asyncpg.InternalClientError) as problem:
        # The second is what the driver says when a connection ends between two messages of one statement.
        raise errors.DatabaseAwayError(f"{_where(url)}: {problem}.") from problem
    except (OSError, TimeoutError) as problem:
        raise errors.DatabaseAwayError(
            f"PostgreSQL at {_where(url)} cannot be reached: {str(problem) or type(problem).__name__}.",
            fix="Check DATABASE_URL and that the server runs, or unset it to use the embedded one.",
        ) from problem


@contextmanager
def _readable() -> Generator[None]:
    """Around opening only: what the driver says about an address that it cannot read."""
    try:
        yield
    except (ValueError, OverflowError) as problem:
        # Other texts than the driver's own may quote a piece of the password.
        why = f": {problem}" if isinstance(problem, asyncpg.exceptions.ClientConfigurationError) else ""
        raise errors.DatabaseAwayError(
            f"DATABASE_URL cannot be read{why}.",
            fix="Write it as postgresql://user:password@host:5432/database, with / ? # @ and % in the "
            "password written as %2F %3F %23 %40 and %25.",
        ) from None


def _where(url: Secret) -> str:
    return redact_url(url.reveal())


def translate(problem: asyncpg.PostgresError, url: Secret) -> errors.HoldfastError:  # noqa: C901
    code = problem.sqlstate or ""
    message = str(problem.args[0] if problem.args else problem)
    ours = errors.from_sqlstate(code, message, hint=getattr(problem, "hint", None), field=_field(problem))
    if ours:
        return ours
    theirs = _callers_mistake(code, message)
    if theirs:
        return theirs
    where = _where(url)
    if code == "25006":
        return errors.DatabaseReadOnlyError(
            f"The database at {where} is read-only: {message}.",
            fix="It is probably a standby: point DATABASE_URL at the primary.",
        )
    if code == "42501":
        return errors.DatabaseRightsError(
            f"The role at {where} may not do this: {message}.",
            fix="Run it as the owner of the database, or ask for the right.",
        )
    if code in {"53100", "53200", "53300"}:
        return errors.DatabaseFullError(
            f"The database at {where} has run out of room: {message}.",
            fix="Free disk space or connections on the server and try again.",
        )
    if code == "3D000":
        return errors.DatabaseAwayError(
            f"The server at {where} has no such database: {message}.", fix="Create it with createdb."
        )
    if code == "3F000" and '"holdfast"' in message:
        return errors.SchemaMissingError(f"Holdfast is not installed at {where}.", fix="holdfast migrate")
    if code == "42883" and "holdfast." in message:
        return errors.SchemaOutdatedError(
            f"The schema at {where} is older than this code: {message}.", fix="holdfast migrate"
        )
    if code in {"28P01", "28000"}:
        return errors.DatabaseAwayError(
            f"PostgreSQL at {where} refused the login: {message}.",
            fix="Check the user and the password in DATABASE_URL, and pg_hba.conf on the server.",
        )
    if code.startswith(("08", "57P")):
        return errors.DatabaseAwayError(
            f"PostgreSQL at {where} does not let us in: {message}.",
            fix="Wait until the server has started, and see its log.",
        )
    return errors.DatabaseError(f"The database answered {code}: {message}.")


def is_refused(problem: BaseException) -> bool:
    """Whether the database says that the role has no right to do this, in the driver's words."""
    return isinstance(problem, asyncpg.InsufficientPrivilegeError)


def _callers_mistake(code: str, message: str) -> errors.HoldfastError | None:
    """Values that the database cannot read, keep or find room for are the caller's to mend, not ours."""
    if code.startswith("22") or code in {"23502", "23514"}:
        return errors.InvalidError(f"A value cannot be used: {message}.")
    if code == "23505":
        return errors.ConflictError("There is one already.")
    if code.startswith("54"):
        return errors.TooLargeError("A value is too long or too complex.")
    return None


def _field(problem: asyncpg.PostgresError) -> str | None:
    """Our functions name the wrong argument in `column`, the one error field meant for a name."""
    return getattr(problem, "column_name", None)
