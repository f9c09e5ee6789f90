"""All exceptions that Holdfast raises.

    HoldfastError
    ├── SettingsError                        a setting is unknown or has the wrong value
    ├── DatabaseError                        the database could not execute a call
    │   ├── DatabaseUnavailableError         unreachable, starting up or shutting down
    │   │   └── DatabaseLoginError           the URL, the login or the database name is wrong
    │   ├── DatabaseRefusedError             the database refused the data of a call
    │   ├── DatabaseTooOldError              PostgreSQL before version 14
    │   ├── DatabaseReadOnlyError            a standby, or read-only by setting
    │   ├── DatabasePermissionError          the role lacks a privilege
    │   ├── DatabaseFullError                no disk space or no free connection
    │   └── EmbeddedDatabaseError            the embedded PostgreSQL failed
    ├── StorageError                         the object store could not execute a call
    │   ├── StorageUnavailableError          unreachable or too slow
    │   ├── StoragePermissionError           key, region or bucket refused
    │   └── StorageFullError                 no space left
    ├── SchemaError                          schema and version do not match
    │   ├── SchemaMissingError               the schema is not installed
    │   ├── SchemaOutdatedError              the schema is older than this version
    │   ├── SchemaTooNewError                the schema is newer than this version
    │   ├── SchemaChangedError               an applied migration file was changed
    │   └── SchemaBusyError                  another migration runs
    ├── NotFoundError                  HF002 does not exist, or belongs to somebody else
    ├── ConflictError                  HF003 exists already, or is in another state
    ├── InvalidError                   HF004 an argument is wrong; `field` names it
    ├── LeaseLostError                 HF001 another worker or reader has the lease
    ├── RefusedError                   HF005 not allowed, or needs a confirmation
    ├── TooManyRequestsError           HF006 too many calls; wait for `retry_after` seconds
    ├── QuotaExceededError             HF007 the quota of the owner is used up
    ├── TooLargeError                        a value is larger than the limit
    ├── GoneError                            expired or deleted
    ├── LifespanError                        a lifespan failed to open or to close
    └── TaskFailedError                      `result()` of a job that did not succeed

Catch `HoldfastError` for all of them. `message` says what happened, `fix` what to do, and `field` names the
argument.

>>> from holdfast import task
>>> from holdfast.errors import HoldfastError
>>> try:
...     task(prio=5)
... except HoldfastError as error:
...     print(error.field)
prio

A task decides its own outcome by raising an `OutcomeSignal`, which is not part of this tree: `Reject`,
`Cancel`, `Snooze` or `RateLimited`. `PublicError` is an ordinary failure whose message end users may read.

SQL functions raise the codes HF001 to HF007, so that clients in every language can tell the errors apart.
`build_error_from_sqlstate` turns the codes back into exceptions. `exit_code` is that of the command line.
"""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

__all__ = [
    "Cancel", "ConflictError", "DatabaseError", "DatabaseFullError", "DatabaseLoginError",
    "DatabasePermissionError", "DatabaseReadOnlyError", "DatabaseRefusedError", "DatabaseTooOldError",
    "DatabaseUnavailableError", "EmbeddedDatabaseError",
    "GoneError", "HoldfastError", "InvalidError", "LeaseLostError", "LifespanError", "NotFoundError",
    "OutcomeSignal", "PublicError", "QuotaExceededError", "RateLimited", "RefusedError", "Reject",
    "SchemaBusyError", "SchemaChangedError", "SchemaError", "SchemaMissingError", "SchemaOutdatedError",
    "SchemaTooNewError", "SettingsError", "Snooze", "StorageError", "StorageFullError",
    "StoragePermissionError", "StorageUnavailableError", "TaskFailedError", "TooLargeError",
    "TooManyRequestsError", "build_error_from_sqlstate",
]  # fmt: skip


class HoldfastError(Exception):
    """The base class of all exceptions in this module.

    `message` says what happened, `fix` says in one sentence what to do, `field` names the wrong argument.

    >>> from holdfast import HoldfastError
    >>> str(HoldfastError("The queue does not exist.", fix="Create it."))
    'The queue does not exist. Create it.'
    """

    sqlstate: ClassVar[str | None] = None
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, fix: str | None = None, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.field = field

    def __str__(self) -> str:
        return f"{self.message} {self.fix}" if self.fix else self.message


class SettingsError(HoldfastError):
    """A setting is unknown or its value cannot be used."""

    exit_code = 2


class DatabaseError(HoldfastError):
    """The database could not execute a call."""

    exit_code = 6


class DatabaseUnavailableError(DatabaseError):
    """The database is unreachable, starts up, shuts down or closed the connection. Try again later."""


class DatabaseLoginError(DatabaseUnavailableError):
    """The URL is invalid, the database does not exist, or the server refused the login. Correct it first."""


class DatabaseRefusedError(DatabaseError):
    """The database refused a call because of its data. The same call fails again."""

    exit_code = 1


class DatabaseTooOldError(DatabaseError):
    """The PostgreSQL server is older than version 14."""


class DatabaseReadOnlyError(DatabaseError):
    """The database is read-only: a standby, or `default_transaction_read_only` is on."""


class DatabasePermissionError(DatabaseError):
    """The role of the connection lacks a privilege."""

    exit_code = 5


class DatabaseFullError(DatabaseError):
    """The database has no disk space or no free connection left."""


class EmbeddedDatabaseError(DatabaseError):
    """The embedded PostgreSQL could not be started or stopped."""


class StorageError(HoldfastError):
    """The object store could not execute a call."""

    exit_code = 6


class StorageUnavailableError(StorageError):
    """The object store is unreachable or too slow."""


class StoragePermissionError(StorageError):
    """The object store refused the key, the region or the bucket."""

    exit_code = 5


class StorageFullError(StorageError):
    """The object store has no space left."""


class SchemaError(HoldfastError):
    """The database schema and this version of Holdfast do not match."""

    exit_code = 4


class SchemaMissingError(SchemaError):
    """The schema is not installed. Run `holdfast migrate`."""


class SchemaOutdatedError(SchemaError):
    """The schema is older than this version of Holdfast. Run `holdfast migrate`."""


class SchemaTooNewError(SchemaError):
    """The schema is newer than this version of Holdfast. Upgrade Holdfast."""


class SchemaChangedError(SchemaError):
    """A migration file differs from the one that was applied."""


class SchemaBusyError(SchemaError):
    """Another migration runs, or a lock could not be taken in time. Try again."""


class LeaseLostError(HoldfastError):
    """Another worker or reader has the lease now. Stop working on the task or message."""

    sqlstate = "HF001"


class NotFoundError(HoldfastError):
    """The object does not exist, or belongs to somebody else."""

    sqlstate = "HF002"
    exit_code = 3


class ConflictError(HoldfastError):
    """The object exists already with other content, or is in a state that does not allow the call."""

    sqlstate = "HF003"
    exit_code = 4


class InvalidError(HoldfastError):
    """An argument is wrong. `field` names it."""

    sqlstate = "HF004"
    exit_code = 2


class RefusedError(HoldfastError):
    """The call is valid but not allowed: it needs a confirmation, a privilege or another state."""

    sqlstate = "HF005"
    exit_code = 5


class TooManyRequestsError(HoldfastError):
    """Too many calls at once or per second. Try again after `retry_after` seconds.

    >>> from holdfast.errors import TooManyRequestsError
    >>> TooManyRequestsError("Too many requests.", retry_after=2.5).retry_after
    2.5
    """

    sqlstate = "HF006"
    exit_code = 4

    def __init__(
        self,
        message: str,
        *,
        fix: str | None = None,
        field: str | None = None,
        retry_after: float = 1.0,
    ) -> None:
        super().__init__(message, fix=fix, field=field)
        self.retry_after = retry_after


class QuotaExceededError(HoldfastError):
    """The quota of the owner is used up."""

    sqlstate = "HF007"
    exit_code = 4


class TooLargeError(HoldfastError):
    """A value is larger than the limit."""

    exit_code = 2


class GoneError(HoldfastError):
    """The object existed and has expired or was deleted."""

    exit_code = 3


class LifespanError(HoldfastError):
    """The lifespan of an application failed to open or to close."""


class TaskFailedError(HoldfastError):
    """The job of `result()` did not succeed. `status` is its status, `error_type` the class of its error.

    >>> from holdfast import TaskFailedError
    >>> TaskFailedError("Job 1 ended as failed.", status="failed").status
    'failed'
    """

    def __init__(self, message: str, *, status: str, error_type: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.error_type = error_type


_ERROR_CLASS_BY_SQLSTATE: dict[str, type[HoldfastError]] = {
    error_class.sqlstate: error_class
    for error_class in (
        LeaseLostError,
        NotFoundError,
        ConflictError,
        InvalidError,
        RefusedError,
        TooManyRequestsError,
        QuotaExceededError,
    )
    if error_class.sqlstate
}


def build_error_from_sqlstate(
    code: str, message: str, *, hint: str | None = None, field: str | None = None
) -> HoldfastError | None:
    """Return the exception for a code that an SQL function raised, or None for any other code.

    >>> from holdfast.errors import build_error_from_sqlstate
    >>> build_error_from_sqlstate("HF002", "The job does not exist.")
    NotFoundError('The job does not exist.')
    """
    error_class = _ERROR_CLASS_BY_SQLSTATE.get(code)
    return error_class(message, fix=hint, field=field) if error_class else None


class OutcomeSignal(Exception):  # noqa: N818  (a decision, not an error)
    """Base class of the exceptions that a task raises to decide its own outcome.

    The exceptions are `Cancel`, `RateLimited`, `Reject` and `Snooze`. Raise them: a task that returns one
    fails, because a returned value is its result.

    >>> from holdfast import Reject
    >>> from holdfast.errors import OutcomeSignal
    >>> issubclass(Reject, OutcomeSignal)
    True
    """


class Reject(OutcomeSignal):
    """Fail the task without another attempt, because no later attempt can succeed.

    >>> from holdfast import Reject, task
    >>> @task
    ... def fetch(url: str) -> str:
    ...     raise Reject("page does not exist")
    """


class Cancel(OutcomeSignal):
    """End the task as cancelled, because there is nothing left to do. `reason` is recorded with the task.

    >>> from holdfast import Cancel, task
    >>> @task
    ... def ship(order: int) -> None:
    ...     raise Cancel("order was withdrawn")
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Snooze(OutcomeSignal):
    """Run the task again after `delay`, a timedelta or a number of seconds. The attempt is not counted.

    >>> from datetime import timedelta
    >>> from holdfast import Snooze, task
    >>> @task
    ... def poll(url: str) -> None:
    ...     raise Snooze(timedelta(minutes=5))
    """

    def __init__(self, delay: timedelta | float) -> None:
        super().__init__(delay)
        self.delay = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)

    def __str__(self) -> str:
        return f"run again in {self.delay}"


class RateLimited(OutcomeSignal):
    """Pause every task that uses the limit key `key`, then run this one again. The attempt is not counted.

    `retry_after` is the minimum pause; without it the pause grows with each rate-limited attempt.

    >>> from datetime import timedelta
    >>> from holdfast import RateLimited, task
    >>> @task
    ... def caption(url: str) -> str:
    ...     raise RateLimited("openai", retry_after=timedelta(seconds=30))
    """

    def __init__(self, key: str, retry_after: timedelta | float | None = None) -> None:
        super().__init__(key, retry_after)
        self.key = key
        self.retry_after = (
            timedelta(seconds=retry_after) if isinstance(retry_after, (int, float)) else retry_after
        )

    def __str__(self) -> str:
        return f"rate limit of {self.key!r} reached"


class PublicError(Exception):
    """Fail the attempt with a message that end users may read.

    End users see only that other errors happened, not their messages. The attempt is retried like after
    any other exception.

    >>> from holdfast import PublicError, task
    >>> @task
    ... def parse(text: str) -> str:
    ...     raise PublicError("The file is not a spreadsheet.")
    """
