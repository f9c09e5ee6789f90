"""Send outcomes apart after the database refused a batch of them for its data.

One outcome that cannot be stored (a result with a character that JSON text in PostgreSQL cannot hold, say)
must not keep the others. The batch is halved until the bad outcome is alone. Then the attempt is recorded as
failed with the database's message, or, if even that is refused, its lease is left to expire.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from uuid import UUID

import msgspec

from holdfast.engine import leases
from holdfast.engine.connection import Database, is_data_error
from holdfast.engine.leases import Lease, Outcome, OutcomeAnswer
from holdfast.worker.outbox import Outbox
from holdfast.worker.outcomes import build_refused_outcome

_KINDS_WITHOUT_FAILURE = ("release", "lost")  # the task did nothing wrong; its lease expires instead
EndLeases = Callable[[Sequence[Lease], float], None]


class OutcomeIsolator:
    """Sends the outcomes of an outbox without claiming tasks, and sets apart what the database refuses."""

    def __init__(self, database: Database, worker: str, outbox: Outbox, end_leases: EndLeases) -> None:
        self._database = database
        self._worker = worker
        self._outbox = outbox
        self._end_leases = end_leases

    async def send_outcomes_apart(self) -> None:
        """Send all unsent outcomes. What is not confirmed because of another error stays in the outbox."""
        groups = [self._outbox.take_unsent_outcomes()]
        replaced: set[UUID] = set()
        try:
            while groups:
                group = groups[-1]
                error = await self._send_group(group)
                groups.pop()
                if error is None:
                    continue
                if len(group) > 1:
                    middle = len(group) // 2
                    groups += [group[middle:], group[:middle]]
                elif group[0].id in replaced or group[0].kind in _KINDS_WITHOUT_FAILURE:
                    self._give_up_outcome(group[0], error)
                else:
                    replaced.add(group[0].id)
                    groups.append([self._replace_refused_outcome(group[0], error)])
        finally:
            for group in groups:  # the first group is the newest
                self._outbox.put_outcomes_back(group)

    async def _send_group(self, outcomes: list[Outcome]) -> Exception | None:
        """Send outcomes and confirm them. Return the error if the database refuses their data."""
        sent_at = time.monotonic()
        try:
            answers = await self._finish(outcomes)
        except UnicodeError as error:
            return error
        except Exception as error:
            if is_data_error(error):
                return error
            raise
        self._end_leases(self._outbox.confirm_outcomes(outcomes, answers), sent_at)
        return None

    async def _finish(self, outcomes: list[Outcome]) -> Sequence[OutcomeAnswer]:
        async with self._database.connection() as connection:
            response = await leases.finish_and_claim(
                connection, worker=self._worker, outcomes=outcomes, slots=0, queues=()
            )
        return response.answers

    def _replace_refused_outcome(self, outcome: Outcome, error: Exception) -> Outcome:
        self._outbox.emit_refused_event(outcome, str(error))
        refused = build_refused_outcome(outcome.kind, error)
        return msgspec.structs.replace(outcome, kind=refused.kind, body=refused.body)

    def _give_up_outcome(self, outcome: Outcome, error: Exception) -> None:
        """Stop renewing the lease of a task whose failure cannot be recorded either. The lease expires."""
        self._outbox.emit_refused_event(outcome, str(error))
        self._end_leases(self._outbox.confirm_outcomes([outcome]), time.monotonic())
