"""Telemetry events: emit them, and subscribe to them for logs, metrics and error reports.

An event costs one lookup while nobody has subscribed. An exception in a subscriber is logged and does not
reach the code that emitted the event.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, Final

__all__ = ["EVENT_DESCRIPTIONS", "Subscriber", "emit", "has_subscribers", "subscribe", "subscription"]

Subscriber = Callable[[str, dict[str, Any]], None]

# The names of all events: "<noun>.<what happened>", each with its sentence and its fields.
# docs/reference/events.md is generated from this.
EVENT_DESCRIPTIONS: Final[dict[str, str]] = {
    "database.started": "The embedded PostgreSQL accepted connections: url (redacted), seconds, fresh",
    "database.stopped": "The embedded PostgreSQL was stopped: reason",
    "database.stale_state_removed": "Leftovers of a crashed embedded PostgreSQL were removed: what",
    "database.connection_failed": "The database cannot be reached: address, reason",
    "database.still_unreachable": "The database has been unreachable since: address, reason, seconds",
    "database.connection_restored": "The database can be reached again: address, seconds",
    "schema.migrated": "Migrations were applied: versions, seconds",
    "schema.lock_waited": "A migration waited for another one: attempt",
    "schema.role_skipped": "A role could not be created or granted: role, error",
    "worker.started": "A worker began to claim tasks: worker, queues, tasks, concurrency",
    "worker.service_failed": "A part of a worker failed and is tried again: service, error, failures",
    "worker.service_recovered": "A part of a worker works again: service, failures",
    "worker.stopped": "A worker released all its tasks: worker, reason",
    "schedules.registered": "Schedules of an app were stored: source, created, changed, unchanged, missing",
    "schedule.attempt_started": "An attempt of a task of a scheduled job without an owner began: schedule, "
    "task, job, name, queue, attempt",
    "worker.event_loop_blocked": "A task blocked the event loop: worker, task, name, seconds, place",
    "worker.heartbeat_replaced": "The process that renews leases died and was started again: worker",
    "worker.child_started": "A child process for tasks was started: worker, pid",
    "worker.child_ended": "A child process ended: worker, pid, reason, task, peak (bytes)",
    "worker.process_restarted": "A worker process ended and will be restarted: number, reason, retry_in",
    "worker.health_server_started": "The health server of a worker was started: url",
    "tasks.claimed": "A claim returned: worker, claimed, requested, outcomes, seconds",
    "task.raised": "An attempt raised an exception: task, job, name, attempt, exception (as it was raised), "
    "masker (masks the secrets of the arguments in a text)",
    "task.started": "An attempt began: task, job, name, queue, attempt, owner (if the job has one)",
    "task.finished": "The outcome of an attempt was recorded: task, job, name, queue, attempt, owner, "
    "schedule (as for schedule.attempt_started), outcome, seconds, error",
    "outcome.refused": "The outcome of an attempt was not recorded: task, attempt, outcome, reason",
    "task.lease_lost": "Another worker got the lease of a task: task, attempt",
    "message.started": "A consumer began to handle a message: queue, message, name, reads",
    "message.finished": "A consumer handled a message: queue, message, name, reads, outcome, seconds, error",
    "message.lease_lost": "A message was read by another reader or deleted: queue, message",
    "message.moved_to_dead_letters": "A message was moved to the dead letters: queue, message, error",
    "files.swept": "The content of expired and deleted files was removed: deleted, expired, lost",
    "egress.refused": "An outgoing request was refused by policy: source (client or proxy), target, reason",
    "provider.call_finished": "A call of a provider ended: kind, provider, model, outcome, "
    "tokens_in, tokens_out, audio_s, images, cost, seconds",
    "webhook.disabled": "A webhook was switched off after too many failures: webhook, error",
    "api.started": "The API accepted connections: url",
    "api.request_completed": "The API answered a request: method, path, status, seconds",
}

_subscribers: tuple[tuple[Subscriber, frozenset[str] | None], ...] = ()
_subscribers_by_event: dict[str, tuple[Subscriber, ...]] = {}
_log = logging.getLogger("holdfast.telemetry")


def subscribe(subscriber: Subscriber, *, only: Iterable[str] | None = None) -> Callable[[], None]:
    """Call `subscriber(name, fields)` for every event, or for the events in `only`. Return the unsubscriber.

    >>> from holdfast import telemetry
    >>> def print_event(name: str, fields: dict[str, object]) -> None:
    ...     print(name, fields)
    >>> unsubscribe = telemetry.subscribe(print_event, only=["task.finished"])
    >>> unsubscribe()
    """
    names = None if only is None else frozenset(only)
    _set_subscribers((*(each for each in _subscribers if each[0] is not subscriber), (subscriber, names)))
    return lambda: _set_subscribers(tuple(each for each in _subscribers if each[0] is not subscriber))


def _set_subscribers(subscribers: tuple[tuple[Subscriber, frozenset[str] | None], ...]) -> None:
    global _subscribers, _subscribers_by_event  # noqa: PLW0603  (the whole process has one list)
    _subscribers = subscribers
    _subscribers_by_event = {
        name: tuple(subscriber for subscriber, only in subscribers if only is None or name in only)
        for name in EVENT_DESCRIPTIONS
        if subscribers
    }


@contextmanager
def subscription(subscriber: Subscriber) -> Generator[None, None, None]:
    """Call `subscriber(name, fields)` for every event while a block runs.

    >>> from holdfast import telemetry
    >>> names: list[str] = []
    >>> with telemetry.subscription(lambda name, fields: names.append(name)):
    ...     telemetry.emit("files.swept", deleted=0, expired=0, lost=0)
    >>> names
    ['files.swept']
    """
    unsubscribe = subscribe(subscriber)
    try:
        yield
    finally:
        unsubscribe()


def has_subscribers(name: str) -> bool:
    """Return whether an event has subscribers, so that callers can skip collecting its fields.

    >>> from holdfast import telemetry
    >>> telemetry.has_subscribers("files.swept")
    False
    """
    return bool(_subscribers_by_event.get(name))


def emit(name: str, /, **fields: Any) -> None:
    """Call the subscribers of an event. The name must be in `EVENT_DESCRIPTIONS`.

    The engine and the bundled systems emit events with it. Applications cannot add names: they log with
    `ctx.log` and `logging`, and count with a metrics library of their own.

    >>> from holdfast import telemetry
    >>> telemetry.emit("files.swept", deleted=0, expired=0, lost=0)
    """
    if not _subscribers:
        return
    if name not in EVENT_DESCRIPTIONS:
        raise ValueError(f"unknown event {name!r}; add it to telemetry.EVENT_DESCRIPTIONS")
    for subscriber in _subscribers_by_event[name]:
        try:
            subscriber(name, fields)
        except Exception:
            _log.exception("telemetry subscriber failed on %s", name)
