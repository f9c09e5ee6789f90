"""Run our statements on the caller's own connection, so that they take effect only if the caller commits.

Supported connections: asyncpg; psycopg 3, sync and async; SQLAlchemy connections and sessions, sync and
async; Django. They are recognized by the module of their class, so none of those libraries is imported or
required.

One rule applies to all: there must be a transaction that the caller ends. An autocommit connection would make
the job visible at once, whatever the caller does next, so it is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from holdfast import errors
from holdfast.engine.jobs import SubmitResult
from holdfast.errors import InvalidError, RefusedError

T = TypeVar("T")

# A statement has exactly one parameter, a JSON text, written as {}, and returns one value as text.
StatementTemplate = str
SUBMIT_STATEMENT: StatementTemplate = "select holdfast.submit({}::jsonb)::text"


@dataclass(frozen=True)
class JsonStatement(Generic[T]):
    """A statement with one JSON argument and a decoder of its result, for any kind of connection.

    `translate_error` turns the database's own errors that the caller caused into ours; it gets the SQLSTATE
    and the message.
    """

    statement: StatementTemplate
    argument: bytes
    decode: Callable[[str], T]
    translate_error: Callable[[str, str], errors.HoldfastError | None] = lambda _, __: None


async def run_statement_async(on: object, statement: JsonStatement[T]) -> T:
    """Run a statement on the caller's asynchronous connection and return its decoded result."""
    with _translate_driver_errors(statement):
        return statement.decode(
            await execute_statement_async(on, statement.statement, statement.argument.decode())
        )


def run_statement_sync(on: object, statement: JsonStatement[T]) -> T:
    """Run a statement on the caller's synchronous connection and return its decoded result."""
    with _translate_driver_errors(statement):
        return statement.decode(execute_statement_sync(on, statement.statement, statement.argument.decode()))


def run_statement_or_defer(on: object, statement: JsonStatement[T]) -> Awaitable[T]:
    """Run a statement: at once on a synchronous connection, else when the caller awaits the result."""
    if is_sync_connection(on):
        return CompletedAwaitable(run_statement_sync(on, statement))
    return run_statement_async(on, statement)


class CompletedAwaitable(Generic[T]):
    """An awaitable that returns a known value at once."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __await__(self) -> Generator[None, None, T]:
        yield from ()
        return self.value


async def submit_on_caller_connection(on: object, job: bytes) -> SubmitResult:
    """Submit a job on the caller's asynchronous connection: the job exists if the caller commits."""
    return await run_statement_async(on, _build_submit_statement(job))


def submit_on_sync_connection(on: object, job: bytes) -> SubmitResult:
    """Submit a job on the caller's synchronous connection: the job exists if the caller commits."""
    return run_statement_sync(on, _build_submit_statement(job))


def _build_submit_statement(job: bytes) -> JsonStatement[SubmitResult]:
    return JsonStatement(SUBMIT_STATEMENT, job, lambda text: msgspec.json.decode(text, type=SubmitResult))


@contextmanager
def _translate_driver_errors(statement: JsonStatement[Any]) -> Generator[None]:
    """Convert driver errors with Holdfast's error codes to exceptions of `holdfast.errors`."""
    try:
        yield
    except errors.HoldfastError:
        raise
    except Exception as error:
        translated = _translate_driver_error(error, statement)
        if translated is None:
            raise
        raise translated from error


def _translate_driver_error(
    error: BaseException, statement: JsonStatement[Any]
) -> errors.HoldfastError | None:
    """Return the Holdfast exception for a driver error, also inside a SQLAlchemy or Django exception."""
    innermost: Any = None
    current: BaseException | None = error
    while current is not None:
        if isinstance(getattr(current, "sqlstate", None), str):
            innermost = current
        current = getattr(current, "orig", None) or current.__cause__
    if innermost is None:
        return None
    details: Any = getattr(innermost, "diag", None)  # psycopg; asyncpg has the same as attributes
    message: str = (
        getattr(details, "message_primary", None) or getattr(innermost, "message", None) or str(innermost)
    )
    hint: str | None = getattr(details, "message_hint", None) or getattr(innermost, "hint", None)
    field: str | None = getattr(details, "column_name", None) or getattr(innermost, "column_name", None)
    code: str = innermost.sqlstate
    return statement.translate_error(code, message) or errors.build_error_from_sqlstate(
        code, message, hint=hint, field=field
    )


def is_sync_connection(on: object) -> bool:
    """Return whether a caller's connection is synchronous, so that its calls cannot be awaited."""
    return _detect_library(on) in {"psycopg", "sqlalchemy", "django"}


async def execute_statement_async(on: Any, statement: StatementTemplate, argument: str) -> Any:
    """Run a statement with one JSON parameter on the caller's connection and return its single value."""
    library = _detect_library(on)
    if library == "asyncpg":
        _require_transaction(on.is_in_transaction())
        return await on.fetchval(statement.format("$1"), argument)
    if library == "psycopg_async":
        _require_transaction(_is_psycopg_in_transaction(on))
        cursor = await on.execute(statement.format("%s"), [argument])
        return _get_first_column(await cursor.fetchone())
    if library == "sqlalchemy_async":
        return await on.run_sync(_execute_sqlalchemy, statement, argument)
    return execute_statement_sync(on, statement, argument)


def execute_statement_sync(on: Any, statement: StatementTemplate, argument: str) -> Any:
    """Run a statement with one JSON parameter on a synchronous connection and return its single value."""
    library = _detect_library(on)
    if library == "psycopg":
        _require_transaction(_is_psycopg_in_transaction(on))
        return _get_first_column(on.execute(statement.format("%s"), [argument]).fetchone())
    if library == "sqlalchemy":
        return _execute_sqlalchemy(on, statement, argument)
    if library == "django":
        _require_transaction(on.in_atomic_block or not on.get_autocommit())
        with on.cursor() as cursor:
            cursor.execute(statement.format("%s"), [argument])
            return _get_first_column(cursor.fetchone())
    raise InvalidError(
        f"on= got an asynchronous connection of {type(on).__module__}, which needs an event loop.",
        fix="Use the asynchronous client with it.",
        field="on",
    )


def _detect_library(on: object) -> str:
    """Return the name of the library that a connection belongs to, such as `psycopg`."""
    for cls in type(on).__mro__:
        library = cls.__module__.partition(".")[0]
        if library == "asyncpg":
            return "asyncpg"
        if library == "psycopg":
            return "psycopg_async" if "Async" in cls.__name__ else "psycopg"
        if library == "sqlalchemy":
            return "sqlalchemy_async" if ".asyncio." in cls.__module__ + "." else "sqlalchemy"
        if library == "django":
            return "django"
    raise InvalidError(
        f"on= cannot use a {type(on).__module__}.{type(on).__qualname__}.",
        fix="Pass a connection of asyncpg, psycopg, SQLAlchemy or Django, or a SQLAlchemy session.",
        field="on",
    )


def _require_transaction(in_transaction: bool) -> None:
    if not in_transaction:
        raise RefusedError(
            "on= needs a connection with an open transaction; this one commits every statement by itself.",
            fix="Begin a transaction first, or leave on= out.",
            field="on",
        )


def _is_psycopg_in_transaction(on: Any) -> bool:
    idle = 0  # psycopg.pq.TransactionStatus.IDLE
    return not on.autocommit or int(on.info.transaction_status) != idle


def _execute_sqlalchemy(on: Any, statement: StatementTemplate, argument: str) -> Any:
    connection: Any = on.connection() if callable(getattr(on, "connection", None)) else on
    _require_transaction(not _is_sqlalchemy_autocommit(connection))
    # exec_driver_sql keeps SQLAlchemy from reading the colons of casts as parameters.
    placeholder = "$1" if connection.dialect.driver == "asyncpg" else "%s"
    return connection.exec_driver_sql(statement.format(placeholder), (argument,)).scalar_one()


def _is_sqlalchemy_autocommit(connection: Any) -> bool:
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return True
    raw = connection.connection.dbapi_connection
    if raw is None:
        return False
    return getattr(raw, "isolation_level", None) == "autocommit" or getattr(raw, "autocommit", False) is True


def _get_first_column(row: Any) -> Any:
    return row[0]
