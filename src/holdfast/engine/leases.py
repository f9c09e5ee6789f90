"""Lease tasks, renew the leases, and report outcomes. One coroutine per SQL function.

A lease is `(attempt, nonce)` of a task. Every call that writes passes it, and the engine refuses a stale one.
The wire format of `finish_and_claim` (arrays of columns in, rows and one header out) is known only here and
in `functions/leases/leases.sql`.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Required, TypedDict, Unpack, cast
from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection, Record
from holdfast.model import Json, Progress

OutcomeKind = Literal["succeed", "fail", "reject", "crash", "lost", "snooze", "limited", "cancel", "release"]
OutcomeAnswer = Literal["ok", "stale"]
ProgressAnswer = Literal["ok", "stale", "locked"]
WorkerCommand = Literal["drain", "stop"]

_FINISH_AND_CLAIM = """
select id, job_id, lane_id, name, attempt, suspect, args, parents, header
from holdfast.finish_and_claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
"""
# For tasks of one claim that all succeeded without output. The outputs are left out and so are null.
_FINISH_UNIFORM_AND_CLAIM = """
select id, job_id, lane_id, name, attempt, suspect, args, parents, header
from (select $2::text::uuid[] as ids) as input, lateral holdfast.finish_and_claim($1, ids,
  array_fill($3::integer, array[cardinality(ids)]), array_fill($4::bigint, array[cardinality(ids)]),
  array_fill('succeed'::text, array[cardinality(ids)]), '{}', $5, $6, $7, $8, $9)
"""
_EMPTY_OUTPUTS = (None, b"null")
NONCE_BITS = 63
_HEARTBEAT_TASKS = "select holdfast.heartbeat_tasks($1, $2, $3, $4, $5)"


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """Proof that a worker holds a task for one attempt. Every call that changes the task must present it."""

    id: UUID
    attempt: int
    nonce: int

    @property
    def lease(self) -> Lease:
        """The lease without the other fields of a subclass. Leases are equal if their fields are."""
        return Lease(id=self.id, attempt=self.attempt, nonce=self.nonce)


class LeasedTask(Lease, frozen=True, kw_only=True):
    """A claimed task and its lease. `job_id` is None if the job has only this task."""

    job_id: UUID | None
    name: str | None
    type: str
    queue: str
    args: dict[str, Json]
    parents: dict[str, Json]
    suspect: bool  # its process died before: run it alone in a child process
    lease_s: float
    timeout_s: float
    max_attempts: int
    owner: str | None = None
    trace: str | None = None  # the W3C traceparent of the submitter
    schedule: str | None = None  # the name of the schedule that created the job, if it has no owner


class Outcome(Lease, frozen=True, kw_only=True):
    """How an attempt ended. `body` is JSON text: the output, or the fields of the outcome (finish.sql)."""

    kind: OutcomeKind
    body: bytes | None = None


class ClaimResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The claimed tasks and one answer per reported outcome, in the order of the outcomes.

    `next_s` is the number of seconds until the next claim if no task was claimed.
    """

    answers: Sequence[OutcomeAnswer]
    tasks: Sequence[LeasedTask]
    cursors: str
    next_s: float | None
    command: WorkerCommand | None = None


class HeartbeatResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The leases that the worker lost. `cancelled` are those of them whose tasks were cancelled."""

    lost: frozenset[Lease] = frozenset()
    cancelled: frozenset[Lease] = frozenset()


class _ClaimHeader(msgspec.Struct):
    nonce: int
    lanes: dict[int, tuple[str, str, float, float, int]]
    cursors: msgspec.Raw
    answers: list[OutcomeAnswer] | None = None
    next_s: float | None = None
    command: WorkerCommand | None = None


_ok_progress: list[ProgressAnswer] = ["ok"]
_ok_answer: list[OutcomeAnswer] = ["ok"]
_header_decoder = msgspec.json.Decoder(_ClaimHeader)
_heartbeat_decoder = msgspec.json.Decoder(HeartbeatResponse)
_json_decoder = msgspec.json.Decoder()


class ClaimRequest(TypedDict, total=False):
    """Arguments of `finish_and_claim`. `cursors` is the value of `cursors` in the last response.

    `nonce` is the nonce of all leases of this claim, from `create_nonce`. A worker keeps it to release the
    tasks of a response that was lost. Without it, the database chooses a nonce.
    """

    worker: Required[str]
    outcomes: Sequence[Outcome]
    slots: Required[int]
    queues: Required[Sequence[str]]
    types: Sequence[str] | None
    cursors: str | None
    nonce: int | None


def create_nonce() -> int:
    """Return a random nonce for the leases of one claim."""
    return secrets.randbits(NONCE_BITS)


async def finish_and_claim(connection: Connection, **request: Unpack[ClaimRequest]) -> ClaimResponse:
    """Report the outcomes of finished tasks and claim tasks for the free slots, in one round trip."""
    return (await finish_and_claim_undecoded(connection, **request)).read()


class UndecodedClaimResponse:
    """A claim response that is not decoded yet, because decoding takes as long as starting its tasks."""

    __slots__ = ("_header", "_outcomes", "_rows")

    def __init__(self, rows: Sequence[Record], outcomes: int) -> None:
        self._rows = rows
        self._outcomes = outcomes
        self._header = _header_decoder.decode(rows[-1][8])

    @property
    def task_count(self) -> int:
        return len(self._rows) - 1

    @property
    def cursors(self) -> str:
        return bytes(self._header.cursors).decode()

    @property
    def longest_lease_s(self) -> float:
        """The length of the longest lease in this response, 0 without tasks."""
        return max((lane[2] for lane in self._header.lanes.values()), default=0.0)

    def read(self) -> ClaimResponse:
        header = self._header
        return ClaimResponse(
            answers=header.answers if header.answers is not None else _ok_answer * self._outcomes,
            tasks=_decode_tasks(self._rows[:-1], header),
            cursors=self.cursors,
            next_s=header.next_s,
            command=header.command,
        )


async def finish_and_claim_undecoded(
    connection: Connection, **request: Unpack[ClaimRequest]
) -> UndecodedClaimResponse:
    """Report outcomes and claim tasks like `finish_and_claim`, but return the response undecoded."""
    outcomes, types = request.get("outcomes", ()), request.get("types")
    statement, arguments = _build_claim_statement(outcomes)
    rows = await connection.fetch(
        statement,
        request["worker"],
        *arguments,
        request["slots"],
        list(request["queues"]),
        None if types is None else list(types),
        request.get("cursors") or "{}",
        request.get("nonce"),
    )
    return UndecodedClaimResponse(rows, len(outcomes))


def _build_claim_statement(outcomes: Sequence[Outcome]) -> tuple[str, tuple[object, ...]]:
    """Return the statement and its arguments about outcomes.

    Most batches are of one claim and have succeeded without output. Then only their ids are sent, as text,
    because the driver is slow to encode the elements of arrays.
    """
    if outcomes:
        nonce, attempt = outcomes[0].nonce, outcomes[0].attempt
        for o in outcomes:
            if (
                o.kind != "succeed"
                or o.nonce != nonce
                or o.attempt != attempt
                or o.body not in _EMPTY_OUTPUTS
            ):
                break
        else:
            ids = ",".join([str(o.id) for o in outcomes])
            return _FINISH_UNIFORM_AND_CLAIM, (f"{{{ids}}}", attempt, nonce)
    return _FINISH_AND_CLAIM, (
        [o.id for o in outcomes],
        [o.attempt for o in outcomes],
        [o.nonce for o in outcomes],
        [o.kind for o in outcomes],
        [None if o.body is None else o.body.decode() for o in outcomes],
    )


def _decode_tasks(rows: Sequence[Record], header: _ClaimHeader) -> list[LeasedTask]:
    decode, lanes, nonce = _json_decoder.decode, header.lanes, header.nonce
    tasks: list[LeasedTask] = []
    for row in rows:
        task_id, job_id, lane_id, name, attempt, suspect, args, parents, task_header = row
        queue, task_type, lease_s, timeout_s, attempts = lanes[lane_id]
        details: dict[str, str] | None = decode(task_header) if task_header else None
        tasks.append(
            LeasedTask(
                id=task_id,
                attempt=attempt,
                nonce=nonce,
                job_id=job_id,
                name=name,
                type=task_type,
                queue=queue,
                args=decode(args) if args else {},
                parents=decode(parents) if parents else {},
                suspect=suspect,
                lease_s=lease_s,
                timeout_s=timeout_s,
                max_attempts=attempts,
                owner=details.get("owner") if details else None,
                trace=details.get("trace") if details else None,
                schedule=details.get("schedule") if details else None,
            )
        )
    return tasks


async def heartbeat_tasks(
    connection: Connection,
    *,
    worker: str,
    held: Collection[Lease],
    progress: Mapping[UUID, Progress] | None = None,
) -> HeartbeatResponse:
    """Renew the leases of running tasks, report their progress, and return the lost leases."""
    ordered = sorted(held, key=lambda lease: lease.id)  # the lock order
    reports = {str(i): msgspec.structs.asdict(p) for i, p in (progress or {}).items()}
    response = await connection.fetchval(
        _HEARTBEAT_TASKS,
        worker,
        [lease.id for lease in ordered],
        [lease.attempt for lease in ordered],
        [lease.nonce for lease in ordered],
        msgspec.json.encode(reports).decode() if reports else None,
    )
    return _heartbeat_decoder.decode(response)


async def release_unreceived_tasks(connection: Connection, worker: str, nonces: Collection[int]) -> set[int]:
    """Release the tasks of claims whose responses never reached the worker.

    Return the nonces of claims that held tasks. The statement of another claim may still be running.
    """
    call = "select holdfast.release_unreceived_tasks($1, $2)"
    return set(await connection.fetchval(call, worker, list(nonces)))


async def heartbeat_worker(
    connection: Connection, worker: str, report: Mapping[str, Json]
) -> WorkerCommand | None:
    """Save what the worker reports about itself, and return its command."""
    text = msgspec.json.encode(report).decode()
    command: WorkerCommand | None = await connection.fetchval(
        "select holdfast.heartbeat_worker($1, $2)", worker, text
    )
    return command


async def mark_worker_stopped(connection: Connection, worker: str) -> None:
    """Record that the worker has finished or released all its tasks and exited."""
    await connection.execute("select holdfast.mark_worker_stopped($1)", worker)


async def mark_worker_lost(connection: Connection, worker: str) -> datetime:
    """Record that the worker process died. Return the time of the database."""
    died_at: datetime = await connection.fetchval("select holdfast.mark_worker_lost($1)", worker)
    return died_at


async def release_tasks_of_lost_worker(connection: Connection, worker: str, died_at: datetime) -> int:
    """Release the tasks of claims that were running when the worker died. Return the number of claims."""
    call = "select holdfast.release_tasks_of_lost_worker($1, $2)"
    return int(await connection.fetchval(call, worker, died_at))


async def set_worker_command(connection: Connection, worker: str, command: WorkerCommand | None) -> bool:
    """Tell a worker to drain or to stop. None withdraws the command. Return whether the worker is alive."""
    return bool(await connection.fetchval("select holdfast.set_worker_command($1, $2)", worker, command))


async def assert_lease(connection: Connection, lease: Lease) -> None:
    """Lock a lease until the transaction ends. Raise LeaseLostError if the worker lost the lease."""
    await connection.execute("select holdfast.assert_lease($1, $2, $3)", lease.id, lease.attempt, lease.nonce)


async def complete_task(connection: Connection, lease: Lease, output: bytes | None = None) -> None:
    """Complete a task in the caller's transaction, together with the caller's own writes."""
    await connection.execute(
        "select holdfast.complete_task($1, $2, $3, $4)",
        lease.id,
        lease.attempt,
        lease.nonce,
        None if output is None else output.decode(),
    )


async def report_progress(
    connection: Connection, lease: Lease, percent: float | None, phase: str | None, message: str | None
) -> None:
    """Store the progress of one task and emit a progress event."""
    await connection.execute(
        "select holdfast.progress($1, $2, $3, $4, $5, $6)",
        lease.id,
        lease.attempt,
        lease.nonce,
        percent,
        phase,
        message,
    )


async def save_progress(
    connection: Connection, reports: Sequence[tuple[Lease, Progress]]
) -> Sequence[ProgressAnswer]:
    """Store the progress of several tasks, at most one report of each. Return one answer per report.

    It does not wait for tasks that are locked: report those again.
    """
    answers: list[ProgressAnswer] | None = await connection.fetchval(
        "select holdfast.save_progress($1, $2, $3, $4, $5, $6)",
        [lease.id for lease, _ in reports],
        [lease.attempt for lease, _ in reports],
        [lease.nonce for lease, _ in reports],
        [progress.percent for _, progress in reports],
        [progress.phase for _, progress in reports],
        [progress.message for _, progress in reports],
    )
    return answers if answers is not None else _ok_progress * len(reports)


async def get_step_results(connection: Connection, lease: Lease) -> dict[str, Json]:
    """Return the saved steps of the task: values by name."""
    text = await connection.fetchval(
        "select holdfast.get_step_results($1, $2, $3)", lease.id, lease.attempt, lease.nonce
    )
    return cast("dict[str, Any]", _json_decoder.decode(text))


async def save_step_result(
    connection: Connection, lease: Lease, name: str, value: bytes, files: Sequence[UUID] = ()
) -> Json:
    """Store the result of a step and its files. Return the stored result, which is never overwritten."""
    arguments = [lease.id, lease.attempt, lease.nonce, name, value.decode()]
    if files:
        query = "select holdfast.save_step_result_with_files($1, $2, $3, $4, $5, $6)"
        text = await connection.fetchval(query, *arguments, list(files))
    else:
        text = await connection.fetchval("select holdfast.save_step_result($1, $2, $3, $4, $5)", *arguments)
    return None if text is None else _json_decoder.decode(text)


async def add_tasks(connection: Connection, lease: Lease, tasks: bytes) -> dict[str, UUID]:
    """Add child tasks (a JSON list) to the job of a running task. Return their ids by name. Idempotent."""
    text = await connection.fetchval(
        "select holdfast.add_tasks($1, $2, $3, $4)", lease.id, lease.attempt, lease.nonce, tasks.decode()
    )
    return msgspec.json.decode(text, type=dict[str, UUID])
