"""Decide the outcome of an attempt: from its result, its exception, or the reason why it was stopped.

These are the only rules for outcomes. Every host of the runner (event loop, thread, child process, test) uses
them. Nothing here runs user code or touches the database.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final

import msgspec

from holdfast import telemetry
from holdfast.definitions.payloads import build_arguments_schema, encode_payload
from holdfast.definitions.tasks import Task
from holdfast.engine.leases import OutcomeKind
from holdfast.errors import Cancel, InvalidError, OutcomeSignal, PublicError, RateLimited, Snooze
from holdfast.redaction import SecretMasker
from holdfast.worker.attempts import RELEASING_STOP_REASONS, STOP_REASON_TIME_LIMIT, Attempt
from holdfast.worker.text_cleaning import clean_text
from holdfast.worker.tracebacks import find_last_frame, format_traceback

AnyTask = Task[..., Any]

MAX_ERROR_MESSAGE_CHARS: Final = 4_000
MAX_TRACEBACK_CHARS: Final = 16_000
MAX_FINGERPRINT_CHARS: Final = 200
REFUSED_OUTCOME_ERROR_TYPE: Final = "OutcomeRefused"


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """The outcome of an attempt: its kind, and the JSON body that the engine stores.

    `error` is one line for logs and events. `exception` is what the attempt raised, where it is known in this
    process.
    """

    kind: OutcomeKind
    body: bytes | None = None
    error: str | None = None
    exception: BaseException | None = None


_SUCCESS_WITHOUT_RESULT: Final = TaskOutcome("succeed", b"null")


def build_result_outcome(value: object) -> TaskOutcome:
    """Build the outcome of a returned value: success, or rejection if it cannot be stored."""
    if value is None:
        return _SUCCESS_WITHOUT_RESULT
    try:
        if isinstance(value, OutcomeSignal):
            name = type(value).__name__
            raise InvalidError(
                f"The task returned {name}.", fix=f"Raise it: raise {name}(...).", field="result"
            )
        return TaskOutcome("succeed", encode_payload(value, what="result"))
    except InvalidError as error:
        return build_error_outcome("reject", error)


def build_exception_outcome(task: AnyTask, error: BaseException) -> TaskOutcome:
    """Build the outcome of an exception, by its type and the task's retry policy.

    A signal such as Snooze decides by itself. For other exceptions the retry policy decides.
    """
    if not isinstance(error, Exception):  # sys.exit() in a task ends the attempt, not the worker
        return build_error_outcome("fail", error)
    if isinstance(error, OutcomeSignal):
        return _build_signal_outcome(error)
    policy = task.retry
    retryable = isinstance(error, policy.retry_for) and not isinstance(error, policy.never_for)
    return build_error_outcome("fail" if retryable else "reject", error)


def _build_signal_outcome(signal: OutcomeSignal) -> TaskOutcome:
    if isinstance(signal, Snooze):
        return TaskOutcome("snooze", _encode_outcome_body(delay_s=signal.delay.total_seconds()))
    if isinstance(signal, Cancel):
        reason = clean_text(signal.reason, MAX_ERROR_MESSAGE_CHARS)
        return TaskOutcome("cancel", _encode_outcome_body(reason=reason), reason)
    if isinstance(signal, RateLimited):
        pause = signal.retry_after.total_seconds() if signal.retry_after else None
        return TaskOutcome("limited", _encode_outcome_body(key=signal.key, retry_after_s=pause), str(signal))
    return build_error_outcome("reject", signal)


def build_stop_outcome(
    attempt: Attempt, interruption: BaseException | None = None, *, detail: str = ""
) -> TaskOutcome | None:
    """Build the outcome of a stopped attempt, or None if there is nothing to record.

    `interruption` is the CancelledError that the task ended with, if it did: its traceback tells where.
    """
    reason = attempt.stop_reason
    if reason is None:
        error = RuntimeError("the task cancelled itself")
        return build_error_outcome("fail", error.with_traceback(_get_traceback(interruption)))
    if reason == STOP_REASON_TIME_LIMIT:
        limit = timedelta(seconds=attempt.claimed.timeout_s)
        timeout = TimeoutError(f"ran longer than {limit}{detail}")
        return build_error_outcome("fail", timeout.with_traceback(_get_traceback(interruption)))
    return TaskOutcome("release", None, reason) if reason in RELEASING_STOP_REASONS else None


def _get_traceback(error: BaseException | None) -> Any:
    return None if error is None else error.__traceback__


def build_error_outcome(
    kind: OutcomeKind, error: BaseException, *, message: str | None = None
) -> TaskOutcome:
    """Build a "fail", "reject" or "crash" outcome from an exception."""
    text = clean_text(message or _format_error_message(error), MAX_ERROR_MESSAGE_CHARS)
    lines = format_traceback(error)[-MAX_TRACEBACK_CHARS:]
    # The minimum wait that a remote service asked for, if the exception carries it.
    pause: object = getattr(error, "retry_after", None)
    body = _encode_outcome_body(
        type="PublicError" if isinstance(error, PublicError) else type(error).__qualname__,
        message=text,
        traceback=clean_text(lines, MAX_TRACEBACK_CHARS),
        retry_after_s=pause.total_seconds() if isinstance(pause, timedelta) else None,
        fingerprint=compute_fingerprint(error),
    )
    return TaskOutcome(kind, body, f"{type(error).__qualname__}: {text}", error)


def build_refused_outcome(kind: OutcomeKind, error: Exception) -> TaskOutcome:
    """Build the outcome to record instead of one that the database refused: a failure with the reason.

    A failure keeps its retries. Everything else ends the task, because the next attempt would be refused too.
    """
    message = clean_text(str(error), MAX_ERROR_MESSAGE_CHARS)
    body = _encode_outcome_body(
        type=REFUSED_OUTCOME_ERROR_TYPE, message=message, fingerprint=REFUSED_OUTCOME_ERROR_TYPE
    )
    return TaskOutcome(kind if kind in ("fail", "crash") else "reject", body, message)


def _format_error_message(error: BaseException) -> str:
    return clean_text(error, MAX_ERROR_MESSAGE_CHARS) or type(error).__name__


def compute_fingerprint(error: BaseException) -> str:
    """Return the type and code location of an exception, to group failures by cause."""
    frame = find_last_frame(error)
    place = "?" if frame is None else f"{os.path.basename(frame[0])}:{frame[1]}"  # noqa: PTH119  (a name, in a hot path)
    return clean_text(f"{type(error).__qualname__} {place}", MAX_FINGERPRINT_CHARS)


def emit_exception_event(attempt: Attempt, outcome: TaskOutcome | None) -> None:
    """Emit `task.raised` when the attempt ended with an exception, for error trackers and tests."""
    if outcome is None or outcome.exception is None or not telemetry.has_subscribers("task.raised"):
        return
    claimed = attempt.claimed
    telemetry.emit(
        "task.raised",
        task=str(claimed.id),
        job=str(claimed.job_id or claimed.id),
        name=claimed.name or claimed.type,
        attempt=claimed.attempt,
        exception=outcome.exception,
        masker=create_secret_masker(attempt),
    )


def create_secret_masker(attempt: Attempt) -> SecretMasker:
    """Create a masker that knows the secrets in the arguments of an attempt, for what leaves the worker."""
    masker = SecretMasker()
    masker.collect_secrets(attempt.claimed.args, _get_arguments_schema(attempt.task))
    return masker


@lru_cache(maxsize=1000)
def _get_arguments_schema(task: AnyTask) -> dict[str, Any]:
    return build_arguments_schema(task)


def _encode_outcome_body(**fields: object) -> bytes:
    return msgspec.json.encode({name: value for name, value in fields.items() if value is not None})
