"""What the heartbeat process reports about the tasks and messages of a worker that has ended.

The death of a worker process is not charged to the tasks that it ran, because nobody knows which of them
caused it. They are lost and return at once. Tasks whose code ran in the worker process become suspects: each
runs alone in a child process next time, which shows whether it kills its process. A task that cannot run in
a child process and was alone in the worker process is charged with a crash: it would be tried forever.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from holdfast.engine import leases
from holdfast.engine.connection import Connection, open_connection
from holdfast.engine.leases import Outcome, OutcomeKind
from holdfast.errors import HoldfastError
from holdfast.settings import Secret, Settings
from holdfast.worker import heartbeat_protocol as protocol
from holdfast.worker.heartbeat_protocol import HeartbeatStartMessage, LeasedMessage
from holdfast.worker.messages.renewal import return_messages

LEASE_RETURN_TIMEOUT_S = 20.0  # how long to try to return leases after the worker's death
LEASE_RETURN_RETRY_INTERVAL_S = 0.2
MAX_OUTCOMES_PER_CALL = 500
# A claim of the dead worker may still be running on the server. Its tasks are known when it has committed.
UNRECEIVED_TASK_CHECKS_AFTER_S = (0.0, 0.3, 1.0)


def build_return_outcomes(
    places: Mapping[bytes, int], *, orderly: bool, culprit: bytes | None, holds_messages: bool
) -> list[Outcome]:
    """Build the outcomes of the tasks that a worker held when it ended. `places` are their places by lease.

    After an orderly shutdown all tasks are released. `culprit` is the task that blocked the worker's event
    loop past its time limit: this task has failed, and the others are released.
    """
    if orderly or culprit is not None:
        return [_build_release(key) if key != culprit else _build_timeout(key) for key in places]
    in_worker_count = sum(place != protocol.PLACE_CHILD for place in places.values())
    was_alone = in_worker_count == 1 and not holds_messages
    return [_build_loss(key, place, was_alone=was_alone) for key, place in places.items()]


def _build_loss(key: bytes, place: int, *, was_alone: bool) -> Outcome:
    if place == protocol.PLACE_CHILD:
        message = "The worker process ended while a child process ran the task."
        return _build_outcome(key, "lost", {"message": message, "suspect": False})
    if place == protocol.PLACE_WORKER_ONLY and was_alone:
        message = "The worker process ended while only this task ran in it."
        return _build_outcome(key, "crash", {"type": "WorkerLost", "message": message})
    message = "The worker process ended while the task ran in it."
    return _build_outcome(key, "lost", {"message": message, "suspect": True})


def _build_release(key: bytes) -> Outcome:
    return _build_outcome(key, "release", None)


def _build_timeout(key: bytes) -> Outcome:
    message = "The task blocked the event loop past its time limit. The worker was killed."
    return _build_outcome(key, "fail", {"type": "TimeoutError", "message": message})


def _build_outcome(key: bytes, kind: OutcomeKind, body: dict[str, object] | None) -> Outcome:
    lease = protocol.decode_lease_key(key)
    text = None if body is None else msgspec.json.encode(body)
    return Outcome(id=lease.id, attempt=lease.attempt, nonce=lease.nonce, kind=kind, body=text)


async def return_leases_and_messages(
    start: HeartbeatStartMessage,
    settings: Settings,
    outcomes: Sequence[Outcome],
    messages: list[LeasedMessage],
    *,
    orderly: bool,
    released: bool,
) -> None:
    """Report the outcomes and return the messages, so that other workers can run them at once."""
    deadline = time.monotonic() + LEASE_RETURN_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            async with open_connection(Secret(start.url), settings) as connection:
                await _report_outcomes(connection, start.worker, outcomes)
                await return_messages(connection, messages, released=released)
                if not orderly:
                    died_at = await leases.mark_worker_lost(connection, start.worker)
                    await _release_unreceived_tasks(connection, start.worker, died_at)
        except HoldfastError:
            await asyncio.sleep(LEASE_RETURN_RETRY_INTERVAL_S)
        else:
            return


async def _report_outcomes(connection: Connection, worker: str, outcomes: Sequence[Outcome]) -> None:
    for offset in range(0, len(outcomes), MAX_OUTCOMES_PER_CALL):
        part = outcomes[offset : offset + MAX_OUTCOMES_PER_CALL]
        await leases.finish_and_claim(connection, worker=worker, outcomes=part, slots=0, queues=[])


async def _release_unreceived_tasks(connection: Connection, worker: str, died_at: datetime) -> None:
    for pause_s in UNRECEIVED_TASK_CHECKS_AFTER_S:
        await asyncio.sleep(pause_s)
        await leases.release_tasks_of_lost_worker(connection, worker, died_at)
