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

from importlib import import_module
from typing import TYPE_CHECKING

from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.client import BatchHandle, BlockingClient, Client, JobHandle
    from holdfast.client.blocking import BlockingBatchHandle, BlockingJobHandle
    from holdfast.client.files import FileOptions
    from holdfast.client.limits import LimitOptions
    from holdfast.client.messages.queues import MessagePolicyChanges, MessageReadOptions
    from holdfast.client.schedules import ScheduleOptions
    from holdfast.client.submit_options import SubmitOptions
    from holdfast.definitions.call_options import CallOptions
    from holdfast.definitions.consumers import Consumer, ConsumerOptions, consumer
    from holdfast.definitions.context import Ctx
    from holdfast.definitions.context_types import ArtifactOptions, ChildTaskOptions
    from holdfast.definitions.graphs import Graph, Node
    from holdfast.definitions.ids import shard_of
    from holdfast.definitions.job_types import JobType, job
    from holdfast.definitions.lifespan import Lifespan, lifespan
    from holdfast.definitions.schedules import Schedule, ScheduledTask, schedule
    from holdfast.definitions.tasks import Call, RetryPolicy, Task, task
    from holdfast.engine.alerts import Alert, AlertRule, AlertSilence
    from holdfast.engine.connection import Connection
    from holdfast.engine.erasures import Erasure
    from holdfast.errors import (
        Cancel,
        HoldfastError,
        PublicError,
        RateLimited,
        Reject,
        Snooze,
        TaskFailedError,
    )
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
    from holdfast.worker.public_worker import Worker
    from holdfast.worker.queue_shares import QueueShare

__all__ = [
    "Alert",
    "AlertRule",
    "AlertSilence",
    "Artifact",
    "ArtifactOptions",
    "Batch",
    "BatchHandle",
    "BlockingBatchHandle",
    "BlockingClient",
    "BlockingJobHandle",
    "Call",
    "CallOptions",
    "Cancel",
    "ChildTaskOptions",
    "Client",
    "Connection",
    "Consumer",
    "ConsumerOptions",
    "Ctx",
    "Erasure",
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
    "shard_of",
    "task",
]

# Names are imported when they are first used. A process that needs a part of the package starts faster: the
# heartbeat process of each worker, and `holdfast --help`.
_MODULE_BY_NAME = {
    "Alert": "holdfast.engine.alerts",
    "AlertRule": "holdfast.engine.alerts",
    "AlertSilence": "holdfast.engine.alerts",
    "Artifact": "holdfast.model",
    "ArtifactOptions": "holdfast.definitions.context_types",
    "Batch": "holdfast.model",
    "BatchHandle": "holdfast.client",
    "BlockingBatchHandle": "holdfast.client.blocking",
    "BlockingClient": "holdfast.client",
    "BlockingJobHandle": "holdfast.client.blocking",
    "Call": "holdfast.definitions.tasks",
    "CallOptions": "holdfast.definitions.call_options",
    "Cancel": "holdfast.errors",
    "ChildTaskOptions": "holdfast.definitions.context_types",
    "Client": "holdfast.client",
    "Connection": "holdfast.engine.connection",
    "Consumer": "holdfast.definitions.consumers",
    "ConsumerOptions": "holdfast.definitions.consumers",
    "Ctx": "holdfast.definitions.context",
    "Erasure": "holdfast.engine.erasures",
    "Failure": "holdfast.model",
    "FileOptions": "holdfast.client.files",
    "Graph": "holdfast.definitions.graphs",
    "HoldfastError": "holdfast.errors",
    "Job": "holdfast.model",
    "JobHandle": "holdfast.client",
    "JobPage": "holdfast.model",
    "JobTask": "holdfast.model",
    "JobType": "holdfast.definitions.job_types",
    "Lifespan": "holdfast.definitions.lifespan",
    "Limit": "holdfast.model",
    "LimitOptions": "holdfast.client.limits",
    "LogLine": "holdfast.model",
    "Message": "holdfast.model",
    "MessageMetrics": "holdfast.model",
    "MessagePolicy": "holdfast.model",
    "MessagePolicyChanges": "holdfast.client.messages.queues",
    "MessageQueue": "holdfast.model",
    "MessageReadOptions": "holdfast.client.messages.queues",
    "Node": "holdfast.definitions.graphs",
    "Progress": "holdfast.model",
    "PublicError": "holdfast.errors",
    "QueueShare": "holdfast.worker.queue_shares",
    "RateLimited": "holdfast.errors",
    "Reject": "holdfast.errors",
    "RetryPolicy": "holdfast.definitions.tasks",
    "Schedule": "holdfast.definitions.schedules",
    "ScheduleOptions": "holdfast.client.schedules",
    "ScheduledTask": "holdfast.definitions.schedules",
    "Secret": "holdfast.settings",
    "Settings": "holdfast.settings",
    "Snooze": "holdfast.errors",
    "StoredSchedule": "holdfast.model",
    "SubmitOptions": "holdfast.client.submit_options",
    "Task": "holdfast.definitions.tasks",
    "TaskExplanation": "holdfast.model",
    "TaskFailedError": "holdfast.errors",
    "Worker": "holdfast.worker.public_worker",
    "consumer": "holdfast.definitions.consumers",
    "job": "holdfast.definitions.job_types",
    "lifespan": "holdfast.definitions.lifespan",
    "load_settings": "holdfast.settings",
    "schedule": "holdfast.definitions.schedules",
    "shard_of": "holdfast.definitions.ids",
    "task": "holdfast.definitions.tasks",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    module = _MODULE_BY_NAME.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
