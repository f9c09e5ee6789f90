"""Background work for Python applications on PostgreSQL: queues, jobs, workers, files and an API.

>>> from holdfast import Client, task
>>> client = Client()
>>> @task
... def double(x: int) -> int:
...     return 2 * x
>>> async def main() -> None:
...     handle = await client.submit(double(21))
...     print(handle.id)

The public names are those in `__all__` of this module and of `holdfast.errors`, `holdfast.server`,
`holdfast.systems`, `holdfast.testing`, `holdfast.telemetry` and `holdfast.egress`. Everything else may change
in any release.
"""

from typing import TYPE_CHECKING

from holdfast.client import BatchHandle, BlockingClient, Client, JobHandle
from holdfast.client.blocking import BlockingBatchHandle, BlockingJobHandle
from holdfast.client.files import FileOptions
from holdfast.client.limits import LimitOptions
from holdfast.client.messages.queues import MessagePolicyChanges, MessageReadOptions
from holdfast.client.schedules import ScheduleOptions
from holdfast.client.submit_options import SubmitOptions
from holdfast.definitions.consumers import Consumer, ConsumerOptions, consumer
from holdfast.definitions.context import Ctx
from holdfast.definitions.context_types import ArtifactOptions, ChildOptions
from holdfast.definitions.graphs import Graph, Node
from holdfast.definitions.job_types import JobType, job
from holdfast.definitions.lifespan import Lifespan, lifespan
from holdfast.definitions.schedules import Schedule, ScheduledTask, schedule
from holdfast.definitions.tasks import Call, RetryPolicy, Task, task
from holdfast.engine.connection import Connection
from holdfast.errors import Cancel, HoldfastError, PublicError, RateLimited, Reject, Snooze, TaskFailedError
from holdfast.model import (
    Artifact,
    Batch,
    Failure,
    Job,
    JobPage,
    JobTask,
    Limit,
    LogLine,
    Message,
    MessageMetrics,
    MessagePolicy,
    MessageQueue,
    Progress,
    StoredSchedule,
    TaskExplanation,
)
from holdfast.settings import Secret, Settings, load_settings
from holdfast.version import __version__
from holdfast.worker.queue_shares import QueueShare

if TYPE_CHECKING:
    from holdfast.worker.public_worker import Worker

__all__ = [
    "Artifact",
    "ArtifactOptions",
    "Batch",
    "BatchHandle",
    "BlockingBatchHandle",
    "BlockingClient",
    "BlockingJobHandle",
    "Call",
    "Cancel",
    "ChildOptions",
    "Client",
    "Connection",
    "Consumer",
    "ConsumerOptions",
    "Ctx",
    "Failure",
    "FileOptions",
    "Graph",
    "HoldfastError",
    "Job",
    "JobHandle",
    "JobPage",
    "JobTask",
    "JobType",
    "Lifespan",
    "Limit",
    "LimitOptions",
    "LogLine",
    "Message",
    "MessageMetrics",
    "MessagePolicy",
    "MessagePolicyChanges",
    "MessageQueue",
    "MessageReadOptions",
    "Node",
    "Progress",
    "PublicError",
    "QueueShare",
    "RateLimited",
    "Reject",
    "RetryPolicy",
    "Schedule",
    "ScheduleOptions",
    "ScheduledTask",
    "Secret",
    "Settings",
    "Snooze",
    "StoredSchedule",
    "SubmitOptions",
    "Task",
    "TaskExplanation",
    "TaskFailedError",
    "Worker",
    "__version__",
    "consumer",
    "job",
    "lifespan",
    "load_settings",
    "schedule",
    "task",
]


def __getattr__(name: str) -> object:
    """Import `Worker` when it is first used: applications that only submit work do not need its modules."""
    if name == "Worker":
        from holdfast.worker.public_worker import Worker  # noqa: PLC0415

        return Worker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
