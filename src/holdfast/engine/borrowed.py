"""The caller's own connection, so that what we write exists only if the caller commits.

Accepted: asyncpg; psycopg 3, sync and async; SQLAlchemy connections and sessions, sync and async; Django.
They are told apart by the module of their class, so none of those libraries is imported or required.

One rule for all: there must be a transaction that the caller ends. An autocommit connection would make the
job visible at once, whatever the caller does next, so it is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from holdfast import errors
from holdfast.engine.jobs import Submitted
from holdfast.errors import InvalidError, RefusedError

T = TypeVar("T")

# Each statement has exactly one parameter, a JSON text, written as {} here, and one value, as text.
Statement = str
SUBMIT: Statement = "select holdfast.submit({}::jsonb)::text"


@dataclass(frozen=True)
class Ask(Generic[T]):
    """One statement with its argument and a way to read its answer, for any kind of connection.

    `names` says which of the database's own errors are the caller's mistake, in our words.
    """

    statement: Statement
    argument: bytes
    read: Callable[[str], T]
    names: Callable[[str, str], errors.HoldfastError | None] = lambda _, __: None


async def ask(on: object, question: Ask[T]) -> T:
    with _translated(question):
        return question.read(await call(on, question.statement, question.argument.decode()))


def ask_sync(on: object, question: Ask[T]) -> T:
    with _translated(question):
        return question.read(call_sync(on, question.statement, question.argument.decode()))


def ask_now(on: object, question: Ask[T]) -> Awaitable[T]:
    """On a synchronous connection it has happened when this returns; otherwise when it was awaited."""
    return Answered(ask_sync(on, question)) if is_sync(on) else ask(on, question)


class Answered(Generic[T]):
    """Something to await that is there already."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __await__(self) -> Generator[None, None, T]:
        yield from ()
        return self.value


async def submit(on: object, job: bytes) -> Submitted:
    return await ask(on, _submitting(job))


def submit_sync(on: object, job: bytes) -> Submitted:
    return ask_sync(on, _submitting(job))


def _submitting(job: bytes) -> Ask[Submitted]:
    return Ask(SUBMIT, job, lambda text: msgspec.json.decode(text, type=Submitted))


@contextmanager
def _translated(question: Ask[Any]) -> Generator[None]:
    """Our errors as ourselves, whatever library brings them; all others as the caller's library has them."""
    try:
        yield
    except errors.HoldfastError:
        raise
    except Exception as problem:
        ours = _in_our_words(problem, question)
        if ours is None:
            raise
        raise ours from problem


def _in_our_words(problem: BaseException, question: Ask[Any]) -> errors.HoldfastError | None:
    """SQLAlchemy keeps the driver's error in `orig`, Django in the cause; the innermost says most."""
    deepest: Any = None
    seen: BaseException | None = problem
    while seen is not None:
        if isinstance(getattr(seen, "sqlstate", None), str):
            deepest = seen
        seen = getattr(seen, "orig", None) or seen.__cause__
    if deepest is None:
        return None
    said: Any = getattr(deepest, "diag", None)  # psycopg; asyncpg has the same as attributes
    message: str = getattr(said, "message_primary", None) or getattr(deepest, "message", None) or str(deepest)
    hint: str | None = getattr(said, "message_hint", None) or getattr(deepest, "hint", None)
    field: str | None = getattr(said, "column_name", None) or getattr(deepest, "column_name", None)
    code: str = deepest.sqlstate
    return question.names(code, message) or errors.from_sqlstate(code, message, hint=hint, field=field)


def is_sync(on: object) -> bool:
    """Whether the connection must be used in the caller's thread, without an event loop."""
    return _kind(on) in {"psycopg", "sqlalchemy", "django"}


async def call(on: Any, statement: Statement, argument: str) -> Any:
    """Run a statement with one JSON parameter on the caller's connection; its single value."""
    kind = _kind(on)
    if kind == "asyncpg":
        _refuse_unless(on.is_in_transaction())
        return await on.fetchval(statement.format("$1"), argument)
    if kind == "psycopg_async":
        _refuse_unless(_psycopg_has_transaction(on))
        cursor = await on.execute(statement.format("%s"), [argument])
        return _first(await cursor.fetchone())
    if kind == "sqlalchemy_async":
        return await on.run_sync(_call_sqlalchemy, statement, argument)
    return call_sync(on, statement, argument)


def call_sync(on: Any, statement: Statement, argument: str) -> Any:
    kind = _kind(on)
    if kind == "psycopg":
        _refuse_unless(_psycopg_has_transaction(on))
        return _first(on.execute(statement.format("%s"), [argument]).fetchone())
    if kind == "sqlalchemy":
        return _call_sqlalchemy(on, statement, argument)
    if kind == "django":
        _refuse_unless(on.in_atomic_block or not on.get_autocommit())
        with on.cursor() as cursor:
            cursor.execute(statement.format("%s"), [argument])
            return _first(cursor.fetchone())
    raise InvalidError(
        f"on= got an asynchronous connection of {type(on).__module__}, which needs an event loop.",
        fix="Use the asynchronous client with it.",
        field="on",
    )


def _kind(on: object) -> str:
    """Which library the connection is of, looking at its class and the classes above it."""
    for kind in type(on).__mro__:
        library = kind.__module__.partition(".")[0]
        if library == "asyncpg":
            return "asyncpg"
        if library == "psycopg":
            return "psycopg_async" if "Async" in kind.__name__ else "psycopg"
        if library == "sqlalchemy":
            return "sqlalchemy_async" if ".asyncio." in kind.__module__ + "." else "sqlalchemy"
        if library == "django":
            return "django"
    raise InvalidError(
        f"on= cannot use a {type(on).__module__}.{type(on).__qualname__}.",
        fix="Pass a connection of asyncpg, psycopg, SQLAlchemy or Django, or a SQLAlchemy session.",
        field="on",
    )


def _refuse_unless(in_transaction: bool) -> None:
    if not in_transaction:
        raise RefusedError(
            "on= needs a connection with an open transaction; this one commits every statement by itself.",
            fix="Begin a transaction first, or leave on= out.",
            field="on",
        )


def _psycopg_has_transaction(on: Any) -> bool:
    idle = 0  # psycopg.pq.TransactionStatus.IDLE
    return not on.autocommit or int(on.info.transaction_status) != idle


def _call_sqlalchemy(on: Any, statement: Statement, argument: str) -> Any:
    connection: Any = on.connection() if callable(getattr(on, "connection", None)) else on
    _refuse_unless(not _sqlalchemy_autocommits(connection))
    # exec_driver_sql keeps SQLAlchemy from reading the colons of casts as parameters.
    mark = "$1" if connection.dialect.driver == "asyncpg" else "%s"
    return connection.exec_driver_sql(statement.format(mark), (argument,)).scalar_one()


def _sqlalchemy_autocommits(connection: Any) -> bool:
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return True
    raw = connection.connection.dbapi_connection
    if raw is None:
        return False
    return getattr(raw, "isolation_level", None) == "autocommit" or getattr(raw, "autocommit", False) is True


def _first(row: Any) -> Any:
    return row[0]
