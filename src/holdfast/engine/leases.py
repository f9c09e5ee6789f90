"""What workers say to the engine: take work, keep it, give it back. One coroutine per SQL function.

A lease is `(attempt, nonce)` of a task. Every call that writes names it, and the engine refuses a stale one.
The wire form of `exchange` (columns of arrays in, rows and one header out) is known here and in
`functions/leases.sql` only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, Required, TypedDict, Unpack, cast
from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection, Record
from holdfast.model import Json, Progress

OutcomeKind = Literal["succeed", "fail", "reject", "crash", "snooze", "limited", "cancel", "release"]
Answer = Literal["ok", "stale"]
Command = Literal["drain", "stop"]

_EXCHANGE = """
select id, job_id, lane_id, name, attempt, crashes, args, parents, header
from holdfast.exchange($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
"""
# Success with nothing to tell, for tasks of one claim. Outputs are left out and so are null.
_EXCHANGE_ALIKE = """
select id, job_id, lane_id, name, attempt, crashes, args, parents, header
from (select $2::text::uuid[] as ids) as given, lateral holdfast.exchange($1, ids,
  array_fill($3::integer, array[cardinality(ids)]), array_fill($4::bigint, array[cardinality(ids)]),
  array_fill('succeed'::text, array[cardinality(ids)]), '{}', $5, $6, $7, $8)
"""
_NOTHING = (None, b"null")
_BEAT = "select holdfast.beat($1, $2, $3, $4, $5)"


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The right to write about a task, for one attempt."""

    id: UUID
    attempt: int
    nonce: int


class Claimed(Lease, frozen=True, kw_only=True):
    """A task that this worker holds. `job_id` is None when the task is the whole job."""

    job_id: UUID | None
    name: str | None
    type: str
    queue: str
    args: dict[str, Json]
    parents: dict[str, Json]
    crashes: int
    lease_s: float
    timeout_s: float
    max_attempts: int
    owner: str | None = None
    trace: str | None = None  # the W3C traceparent of whoever submitted it


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt ended. `body` is JSON text: the output, or what the kind asks for (finish.sql)."""

    id: UUID
    attempt: int
    nonce: int
    kind: OutcomeKind
    body: bytes | None = None


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """`answers` follow the outcomes' order. `next_s`: when something falls due, if nothing was found."""

    answers: Sequence[Answer]
    tasks: Sequence[Claimed]
    cursors: str
    next_s: float | None
    command: Command | None = None


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """Leases that are no longer held; `cancelled` says which of them because somebody cancelled."""

    lost: frozenset[UUID] = frozenset()
    cancelled: frozenset[UUID] = frozenset()


class _Header(msgspec.Struct):
    nonce: int
    lanes: dict[int, tuple[str, str, float, float, int]]
    cursors: msgspec.Raw
    answers: list[Answer] | None = None
    next_s: float | None = None
    command: Command | None = None


_fine: list[Answer] = ["ok"]
_header = msgspec.json.Decoder(_Header)
_beat = msgspec.json.Decoder(Beat)
_json = msgspec.json.Decoder()


class Question(TypedDict, total=False):
    worker: Required[str]
    outcomes: Sequence[Outcome]
    slots: Required[int]
    queues: Required[Sequence[str]]
    types: Sequence[str] | None
    cursors: str | None


async def exchange(connection: Connection, **question: Unpack[Question]) -> Exchange:
    """Send the outcomes of finished tasks and take tasks for the free slots, in one round trip."""
    return (await ask(connection, **question)).read()


class Unread:
    """An answer that has arrived. Reading it takes as long as starting what it brought."""

    __slots__ = ("_header", "_outcomes", "_rows")

    def __init__(self, rows: Sequence[Record], outcomes: int) -> None:
        self._rows = rows
        self._outcomes = outcomes
        self._header = _header.decode(rows[-1][8])

    @property
    def got(self) -> int:
        return len(self._rows) - 1

    @property
    def cursors(self) -> str:
        return bytes(self._header.cursors).decode()

    def read(self) -> Exchange:
        header = self._header
        return Exchange(
            answers=header.answers if header.answers is not None else _fine * self._outcomes,
            tasks=_claimed(self._rows[:-1], header),
            cursors=self.cursors,
            next_s=header.next_s,
            command=header.command,
        )


async def ask(connection: Connection, **question: Unpack[Question]) -> Unread:
    """The same, for those who have something to do between the answer and its reading."""
    outcomes, types = question.get("outcomes", ()), question.get("types")
    statement, given = _sent(outcomes)
    rows = await connection.fetch(
        statement,
        question["worker"],
        *given,
        question["slots"],
        list(question["queues"]),
        None if types is None else list(types),
        question.get("cursors") or "{}",
    )
    return Unread(rows, len(outcomes))


def _sent(outcomes: Sequence[Outcome]) -> tuple[str, tuple[object, ...]]:
    """The statement and its arguments about outcomes. Most batches are of one claim and have nothing to tell
    but success: only their ids travel, as text, because the driver takes long over elements of arrays."""
    if outcomes:
        nonce, attempt = outcomes[0].nonce, outcomes[0].attempt
        for o in outcomes:
            if o.kind != "succeed" or o.nonce != nonce or o.attempt != attempt or o.body not in _NOTHING:
                break
        else:
            ids = ",".join([str(o.id) for o in outcomes])
            return _EXCHANGE_ALIKE, (f"{{{ids}}}", attempt, nonce)
    return _EXCHANGE, (
        [o.id for o in outcomes],
        [o.attempt for o in outcomes],
        [o.nonce for o in outcomes],
        [o.kind for o in outcomes],
        [None if o.body is None else o.body.decode() for o in outcomes],
    )


def _claimed(rows: Sequence[Record], header: _Header) -> list[Claimed]:
    decode, lanes, nonce = _json.decode, header.lanes, header.nonce
    tasks: list[Claimed] = []
    for row in rows:
        task_id, job_id, lane_id, name, attempt, crashes, args, parents, own = row
        queue, kind, lease_s, timeout_s, attempts = lanes[lane_id]
        about: dict[str, str] | None = decode(own) if own else None
        tasks.append(
            Claimed(
                id=task_id,
                attempt=attempt,
                nonce=nonce,
                job_id=job_id,
                name=name,
                type=kind,
                queue=queue,
                args=decode(args) if args else {},
                parents=decode(parents) if parents else {},
                crashes=crashes,
                lease_s=lease_s,
                timeout_s=timeout_s,
                max_attempts=attempts,
                owner=about.get("owner") if about else None,
                trace=about.get("trace") if about else None,
            )
        )
    return tasks


async def beat(
    connection: Connection,
    *,
    worker: str,
    held: Collection[Lease],
    progress: Mapping[UUID, Progress] | None = None,
) -> Beat:
    """Renew all leases in one statement and report progress. The answer names only what is wrong."""
    ordered = sorted(held, key=lambda lease: lease.id)
    news = {str(i): msgspec.structs.asdict(p) for i, p in (progress or {}).items()}
    answer = await connection.fetchval(
        _BEAT,
        worker,
        [lease.id for lease in ordered],
        [lease.attempt for lease in ordered],
        [lease.nonce for lease in ordered],
        msgspec.json.encode(news).decode() if news else None,
    )
    return _beat.decode(answer)


async def release_unheld(
    connection: Connection, worker: str, held: Collection[UUID], within: timedelta
) -> int:
    """Give back what was claimed for the worker and never reached it: all that is newer, but `held`."""
    call = "select holdfast.release_unheld($1, $2, $3)"
    return int(await connection.fetchval(call, worker, list(held), within.total_seconds()))


async def beat_worker(connection: Connection, worker: str, about: Mapping[str, Json]) -> Command | None:
    """Say how the worker is; the answer is what somebody told it to do."""
    text = msgspec.json.encode(about).decode()
    command: Command | None = await connection.fetchval("select holdfast.beat_worker($1, $2)", worker, text)
    return command


async def leave_worker(connection: Connection, worker: str) -> None:
    """The worker has given everything back."""
    await connection.execute("select holdfast.leave_worker($1)", worker)


async def lose_worker(connection: Connection, worker: str) -> None:
    """The worker is dead."""
    await connection.execute("select holdfast.lose_worker($1)", worker)


async def command_worker(connection: Connection, worker: str, command: Command | None) -> bool:
    """Tell a worker to drain or to stop. Whether it was there to hear it."""
    return bool(await connection.fetchval("select holdfast.command_worker($1, $2)", worker, command))


async def assert_lease(connection: Connection, lease: Lease) -> None:
    """Raise LeaseLostError unless the lease is held; hold it until this transaction ends."""
    await connection.execute("select holdfast.assert_lease($1, $2, $3)", lease.id, lease.attempt, lease.nonce)


async def complete(connection: Connection, lease: Lease, output: bytes | None = None) -> None:
    """Record success in the caller's transaction, so that it commits together with what the caller wrote."""
    await connection.execute(
        "select holdfast.complete_task($1, $2, $3, $4)",
        lease.id,
        lease.attempt,
        lease.nonce,
        None if output is None else output.decode(),
    )


async def report(
    connection: Connection, lease: Lease, percent: float | None, phase: str | None, message: str | None
) -> None:
    """Progress of one task, with an event of its own."""
    await connection.execute(
        "select holdfast.progress($1, $2, $3, $4, $5, $6)",
        lease.id,
        lease.attempt,
        lease.nonce,
        percent,
        phase,
        message,
    )


async def get_steps(connection: Connection, lease: Lease) -> dict[str, Json]:
    """What earlier attempts of the task already did."""
    text = await connection.fetchval(
        "select holdfast.get_steps($1, $2, $3)", lease.id, lease.attempt, lease.nonce
    )
    return cast("dict[str, Any]", _json.decode(text))


async def save_step(
    connection: Connection, lease: Lease, name: str, value: bytes, files: Sequence[UUID] = ()
) -> Json:
    """Keep the value of a step, and the files that it saved; answers with what is kept, which is the first
    value ever saved.
    """
    said = [lease.id, lease.attempt, lease.nonce, name, value.decode()]
    if files:
        query = "select holdfast.save_step_files($1, $2, $3, $4, $5, $6)"
        text = await connection.fetchval(query, *said, list(files))
    else:
        text = await connection.fetchval("select holdfast.save_step($1, $2, $3, $4, $5)", *said)
    return None if text is None else _json.decode(text)


async def add_tasks(connection: Connection, lease: Lease, tasks: bytes) -> dict[str, UUID]:
    """Children in the job of a running task, as a JSON list; their ids by name. Safe to say twice."""
    text = await connection.fetchval(
        "select holdfast.add_tasks($1, $2, $3, $4)", lease.id, lease.attempt, lease.nonce, tasks.decode()
    )
    return msgspec.json.decode(text, type=dict[str, UUID])
