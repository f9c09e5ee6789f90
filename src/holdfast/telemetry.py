"""What happens inside Holdfast, as named events.

Code that does something worth knowing calls `emit`; logs, metrics, traces and tests subscribe. Emitting
costs one tuple lookup when nobody listens, and a subscriber that raises is reported and never breaks
the code that emitted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, Final

Subscriber = Callable[[str, dict[str, Any]], None]

# Names are "<noun>.<what happened>". docs/reference/events.md lists them with their fields.
EVENTS: Final[dict[str, str]] = {
    "database.started": "the embedded PostgreSQL accepts connections: url (redacted), seconds, fresh",
    "database.stopped": "the embedded PostgreSQL was stopped: reason",
    "database.recovered": "something stale was cleaned up before a start: what",
    "database.away": "a call could not reach the database: error, retry_in",
    "database.back": "the database answers again: failures",
    "schema.migrated": "migrations were applied: versions, seconds",
    "schema.waiting": "another migration holds the lock: attempt",
    "schema.role_skipped": "a role could not be made or granted: role, error",
    "worker.started": "a worker takes tasks: worker, queues, tasks, concurrency",
    "worker.stopped": "a worker gave everything back: worker, reason",
    "schedules.declared": "schedules of an app were written: source, created, changed, unchanged, missing",
    "worker.blocked": "a task keeps the loop from turning: worker, task, name, seconds, place",
    "worker.heartbeat_replaced": "the process that renews leases died and was started again: worker",
    "worker.child_started": "a child process for tasks was started: worker, pid",
    "worker.child_ended": "a child process ended: worker, pid, reason, task, peak (bytes)",
    "worker.process_restarted": "a worker process ended and is started again: number, reason, retry_in",
    "worker.claimed": "a round trip to the database: worker, got, wanted, outcomes, seconds",
    "worker.health_started": "probes are answered: url",
    "task.raised": "an attempt raised an exception: task, job, name, attempt, exception",
    "task.started": "an attempt began: task, job, name, queue, attempt",
    "task.finished": "an attempt ended: task, job, name, queue, attempt, outcome, seconds, error",
    "task.lease_lost": "someone else holds the task now: task, attempt",
    "message.started": "a consumer was given a message: queue, message, name, reads",
    "message.finished": "a consumer is done with one: queue, message, name, reads, outcome, seconds, error",
    "message.lost": "someone else has the message now, or it is gone: queue, message",
    "message.dead": "a message went to the dead letters: queue, message, error",
    "files.swept": "files that nobody wants any more were deleted: deleted, expired, lost",
    "webhook.off": "a webhook failed for so long that it was switched off: webhook, error",
    "api.started": "the API listens: url",
    "api.request": "a request was answered: method, path, status, seconds",
}

_subscribers: tuple[tuple[Subscriber, frozenset[str] | None], ...] = ()
_by_name: dict[str, tuple[Subscriber, ...]] = {}
_log = logging.getLogger("holdfast.telemetry")


def subscribe(subscriber: Subscriber, *, only: Iterable[str] | None = None) -> Callable[[], None]:
    """Call `subscriber(name, fields)` for every event from now on, once, or only for those named.

    Returns what undoes it.
    """
    wanted = None if only is None else frozenset(only)
    _set((*(each for each in _subscribers if each[0] is not subscriber), (subscriber, wanted)))
    return lambda: _set(tuple(each for each in _subscribers if each[0] is not subscriber))


def _set(subscribers: tuple[tuple[Subscriber, frozenset[str] | None], ...]) -> None:
    global _subscribers, _by_name  # noqa: PLW0603  (one list for the whole process is the point)
    _subscribers = subscribers
    _by_name = {
        name: tuple(subscriber for subscriber, only in subscribers if only is None or name in only)
        for name in EVENTS
        if subscribers
    }


@contextmanager
def subscribed(subscriber: Subscriber) -> Generator[None, None, None]:
    unsubscribe = subscribe(subscriber)
    try:
        yield
    finally:
        unsubscribe()


def heard(name: str) -> bool:
    """Whether anybody listens: where thousands of events a second are made, their fields need not be."""
    return bool(_by_name.get(name))


def emit(name: str, /, **fields: Any) -> None:
    if not _subscribers:
        return
    if name not in EVENTS:
        raise ValueError(f"unknown event {name!r}; add it to telemetry.EVENTS and docs/reference/events.md")
    for subscriber in _by_name[name]:
        try:
            subscriber(name, fields)
        except Exception:
            _log.exception("telemetry subscriber failed on %s", name)
