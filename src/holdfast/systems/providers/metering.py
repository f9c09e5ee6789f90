"""Measure the calls of one provider: what they used, how they ended, and what they cost.

A call of a paid provider is recorded before it is sent and again when it has ended. If the process dies in
between, the call stays `started` and is counted as one whose usage is not known.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from uuid import UUID, uuid4

from holdfast.systems.providers.prices import PriceTable
from holdfast.systems.providers.usage import (
    LOCAL_PROVIDER,
    CallRecord,
    CallStatus,
    ProviderKind,
    ProviderUsage,
    UsageAccount,
    UsageRecorder,
)
from holdfast.telemetry import emit

RECORD_ATTEMPTS = 3
RECORD_RETRY_DELAY_S = 0.5
_log = logging.getLogger("holdfast.systems.providers")


@dataclass
class MeteredCall:
    """A call that runs. The client of the provider sets what it knows.

    `was_sent` is true from the moment at which the provider may charge for the call, and false again when it
    has answered with an error.
    """

    id: UUID = field(default_factory=uuid4)
    was_sent: bool = False
    usage: ProviderUsage | None = None


class CallMeter:
    """Measures the calls of one provider and model. Without a recorder, only metrics count them."""

    def __init__(
        self,
        kind: ProviderKind,
        provider: str,
        model: str,
        *,
        recorder: UsageRecorder | None = None,
        prices: PriceTable | None = None,
    ) -> None:
        self.kind: ProviderKind = kind
        self.provider = provider
        self.model = model
        self._recorder = recorder
        self._prices = prices or PriceTable()

    @classmethod
    def create_local(cls, kind: ProviderKind, model: str, recorder: UsageRecorder | None = None) -> CallMeter:
        """Create the meter of a local provider, whose calls cost nothing."""
        return cls(kind, LOCAL_PROVIDER, model, recorder=recorder)

    @asynccontextmanager
    async def measure_call(self, account: UsageAccount) -> AsyncGenerator[MeteredCall]:
        """Measure the call inside the block, and record it, also if it fails or is cancelled."""
        call = MeteredCall()
        started_at = time.monotonic()
        record = CallRecord(
            id=call.id,
            kind=self.kind,
            provider=self.provider,
            model=self.model,
            account=account,
            status="started",
        )
        if self.provider != LOCAL_PROVIDER and self._recorder is not None:
            # A call that cannot be recorded is not made.
            await self._recorder.record_call(record)
        status: CallStatus | None = None
        try:
            yield call
            status = "succeeded"
        finally:
            status = status or ("unknown" if call.was_sent and call.usage is None else "failed")
            record = replace(
                record,
                status=status,
                usage=call.usage or ProviderUsage(),
                cost=self._compute_cost(call, status),
                duration=timedelta(seconds=time.monotonic() - started_at),
            )
            await asyncio.shield(self._finish(record))

    def _compute_cost(self, call: MeteredCall, status: CallStatus) -> Decimal | None:
        if self.provider == LOCAL_PROVIDER or (status == "failed" and call.usage is None):
            return Decimal(0)
        return (
            None
            if status == "unknown"
            else self._prices.compute_cost(self.model, call.usage or ProviderUsage())
        )

    async def _finish(self, record: CallRecord) -> None:
        _emit_call_event(record)
        if self._recorder is None:
            return
        for attempt in range(RECORD_ATTEMPTS):
            try:
                await self._recorder.record_call(record)
            except Exception:
                # The answer is paid for, so it is used although it is recorded as `started` only.
                if attempt + 1 == RECORD_ATTEMPTS:
                    _log.exception("The usage of the provider call %s could not be recorded.", record.id)
                    return
                await asyncio.sleep(RECORD_RETRY_DELAY_S)
            else:
                return


def _emit_call_event(record: CallRecord) -> None:
    usage = record.usage
    emit(
        "provider.call_finished",
        kind=record.kind,
        provider=record.provider,
        model=record.model,
        outcome=record.status,
        tokens_in=usage.tokens_in,
        tokens_out=usage.tokens_out,
        audio_s=usage.audio_s,
        images=usage.images,
        cost=float(record.cost) if record.cost is not None else None,
        seconds=record.duration.total_seconds() if record.duration is not None else None,
    )
