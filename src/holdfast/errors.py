"""Every exception Holdfast raises, and how each is told apart in SQL and on the command line.

    HoldfastError
    ├── SettingsError                 a setting is unknown or has no usable value
    ├── DatabaseError                 the database cannot serve us
    │   ├── DatabaseAwayError         not reachable, refused the login, or went away
    │   ├── DatabaseTooOldError       PostgreSQL before 14
    │   ├── DatabaseReadOnlyError     a standby, or default_transaction_read_only
    │   ├── DatabaseRightsError       the role may not do what was asked
    │   ├── DatabaseFullError         no space left, or no connection free
    │   └── EmbeddedError             the PostgreSQL that comes with us cannot be started
    ├── StorageError                  the store of files cannot serve us
    │   ├── StorageUnavailableError          not reachable, or too slow
    │   ├── StoragePermissionError        refused our key, our region or our bucket
    │   └── StorageFullError          no space left
    ├── SchemaError                   the schema and this code do not fit
    │   ├── SchemaMissingError        not installed yet
    │   ├── SchemaOutdatedError       older than this code needs
    │   ├── SchemaTooNewError         newer than this code understands
    │   ├── SchemaChangedError        a released migration file differs from what was applied
    │   └── SchemaBusyError           another migration, or a lock that was not to be had in time
    ├── NotFoundError        HF002    no such thing, or not yours
    ├── ConflictError        HF003    it exists already, in another shape or state
    ├── InvalidError         HF004    an argument is wrong; `field` names it
    ├── LeaseLostError       HF001    the lease passed to someone else; stop
    ├── RefusedError         HF005    understood, and not done: needs a confirmation or a right
    ├── TooManyError         HF006    too much at once or in too short a time; `retry_after` says when
    ├── QuotaError           HF007    the room that was granted is used up
    ├── TooLargeError                 one thing is larger than is taken
    ├── GoneError                     it was here, and its time is over
    ├── LifespanError                 what an application opens for its tasks did not open or close
    └── TaskFailedError               what `result()` raises for a job that did not succeed

Tasks decide their own outcome by raising an `OutcomeSignal`, which is not part of this tree: `Reject`,
`Cancel`, `Snooze` or `RateLimited`. `PublicError` is an ordinary failure whose message end users may read.

`sqlstate` is the contract with every language: SQL functions raise these codes, and `from_sqlstate` is
the only place that turns them back into exceptions. `exit_code` is the contract with shells.
"""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar


class HoldfastError(Exception):
    """The root. `fix` says in one sentence what the reader can do about it."""

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
    exit_code = 2


class DatabaseError(HoldfastError):
    exit_code = 6


class DatabaseAwayError(DatabaseError):
    pass


class DatabaseTooOldError(DatabaseError):
    pass


class DatabaseReadOnlyError(DatabaseError):
    pass


class DatabaseRightsError(DatabaseError):
    exit_code = 5


class DatabaseFullError(DatabaseError):
    pass


class EmbeddedError(DatabaseError):
    pass


class StorageError(HoldfastError):
    exit_code = 6


class StorageUnavailableError(StorageError):
    pass


class StoragePermissionError(StorageError):
    exit_code = 5


class StorageFullError(StorageError):
    pass


class SchemaError(HoldfastError):
    exit_code = 4


class SchemaMissingError(SchemaError):
    pass


class SchemaOutdatedError(SchemaError):
    pass


class SchemaTooNewError(SchemaError):
    pass


class SchemaChangedError(SchemaError):
    pass


class SchemaBusyError(SchemaError):
    pass


class LeaseLostError(HoldfastError):
    sqlstate = "HF001"


class NotFoundError(HoldfastError):
    sqlstate = "HF002"
    exit_code = 3


class ConflictError(HoldfastError):
    sqlstate = "HF003"
    exit_code = 4


class InvalidError(HoldfastError):
    sqlstate = "HF004"
    exit_code = 2


class RefusedError(HoldfastError):
    sqlstate = "HF005"
    exit_code = 5


class TooManyError(HoldfastError):
    """Try again after `retry_after` seconds."""

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


class QuotaError(HoldfastError):
    sqlstate = "HF007"
    exit_code = 4


class TooLargeError(HoldfastError):
    exit_code = 2


class GoneError(HoldfastError):
    exit_code = 3


class LifespanError(HoldfastError):
    pass


class TaskFailedError(HoldfastError):
    """Carries the status the job ended with and the error of its failed task, if there is one."""

    def __init__(self, message: str, *, status: str, error_type: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.error_type = error_type


_BY_SQLSTATE: dict[str, type[HoldfastError]] = {
    kind.sqlstate: kind
    for kind in (
        LeaseLostError,
        NotFoundError,
        ConflictError,
        InvalidError,
        RefusedError,
        TooManyError,
        QuotaError,
    )
    if kind.sqlstate
}


def from_sqlstate(
    code: str, message: str, *, hint: str | None = None, field: str | None = None
) -> HoldfastError | None:
    """The exception that an SQL function meant, or None when the code is not one of ours."""
    kind = _BY_SQLSTATE.get(code)
    return kind(message, fix=hint, field=field) if kind else None


class OutcomeSignal(Exception):  # noqa: N818  (a decision, not an error)
    """Base class of the exceptions with which a task decides its own outcome: `Cancel`, `RateLimited`,
    `Reject` and `Snooze`.

    Raise them; a task that returns one fails, because a returned value is its result.
    """


class Reject(OutcomeSignal):
    """Fail the task without another attempt, because no later attempt can succeed.

    raise Reject("page does not exist")
    """


class Cancel(OutcomeSignal):
    """End the task as cancelled, because there is nothing left to do. `reason` is recorded with the task.

    raise Cancel("order was withdrawn")
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Snooze(OutcomeSignal):
    """Run the task again after `delay`. The attempt is not counted.

    raise Snooze(timedelta(minutes=5))
    """

    def __init__(self, delay: timedelta) -> None:
        super().__init__(delay)
        self.delay = delay

    def __str__(self) -> str:
        return f"run again in {self.delay}"


class RateLimited(OutcomeSignal):
    """Pause every task that uses the limit key `key`, then run this one again. The attempt is not counted.

    `retry_after` is the minimum pause; without it the pause grows with each rate-limited attempt.

        raise RateLimited("openai", retry_after=timedelta(seconds=30))
    """

    def __init__(self, key: str, retry_after: timedelta | None = None) -> None:
        super().__init__(key, retry_after)
        self.key = key
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"rate limit of {self.key!r} reached"


class PublicError(Exception):
    """Fail the attempt with a message that end users may read.

    End users see only that other errors happened, not their messages. The attempt is retried like after
    any other exception.
    """
