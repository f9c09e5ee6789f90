"""What calls of providers use and cost, who they are charged to, and where that is recorded."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, Literal, Protocol
from uuid import UUID

from holdfast import Client, Ctx

ProviderKind = Literal["text", "vision", "embeddings", "speech", "transcription", "scraping"]
# started: the request is on its way, or the process died before the answer. failed: the provider answered
# with an error. unknown: no usable answer came, and the provider may have charged for it.
CallStatus = Literal["started", "succeeded", "failed", "unknown"]
LOCAL_PROVIDER = "local"
MAX_SOURCE_CHARS = 200


@dataclass(frozen=True, kw_only=True)
class UsageAccount:
    """Who a call of a provider is charged to: an owner, and the job, task and attempt that made it.

    `source` names what caused the call where there is no task, such as "bookmark 17".
    """

    owner: str | None = None
    job_id: str | None = None
    task_id: str | None = None
    attempt: int | None = None
    source: str | None = None

    @classmethod
    def of_task(cls, ctx: Ctx[Any]) -> UsageAccount:
        """Return the account of a running task."""
        return cls(owner=ctx.owner, job_id=ctx.job_id, task_id=ctx.task_id, attempt=ctx.attempt)


@dataclass(frozen=True, kw_only=True)
class ProviderUsage:
    """What one call used. None means that the provider did not say."""

    tokens_in: int | None = None
    tokens_out: int | None = None
    audio_s: float | None = None
    images: int | None = None


@dataclass(frozen=True, kw_only=True)
class CallRecord:
    """One call of a provider, as it is stored. The same `id` recorded twice is counted once.

    `cost` is None if the model has no price or the usage is not known.
    """

    id: UUID
    kind: ProviderKind
    provider: str
    model: str
    account: UsageAccount
    status: CallStatus
    usage: ProviderUsage = ProviderUsage()
    cost: Decimal | None = None
    duration: timedelta | None = None


class UsageRecorder(Protocol):
    """Stores calls of providers."""

    async def record_call(self, record: CallRecord) -> None:
        """Store a call, or how it ended."""
        ...


class DatabaseUsageRecorder:
    """Stores calls of providers in the database, in transactions of their own.

    What was spent stays counted, whatever becomes of the task.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def record_call(self, record: CallRecord) -> None:
        account, usage = record.account, record.usage
        async with self._client.connection() as connection:
            await connection.execute(
                "select holdfast.record_provider_call($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13,"
                " $14, $15, $16)",
                record.id,
                record.kind,
                record.provider,
                record.model,
                record.status,
                account.owner,
                UUID(account.job_id) if account.job_id else None,
                UUID(account.task_id) if account.task_id else None,
                account.attempt,
                account.source[:MAX_SOURCE_CHARS] if account.source else None,
                usage.tokens_in,
                usage.tokens_out,
                usage.audio_s,
                usage.images,
                record.cost,
                record.duration.total_seconds() if record.duration is not None else None,
            )
