"""Background work for Python applications on PostgreSQL.

The public names. Everything else may change without notice, except what is documented in `holdfast.errors`,
`holdfast.testing` and `holdfast.telemetry`.
"""

from holdfast.client import Client, JobHandle
from holdfast.definitions.consumers import Consumer, consumer
from holdfast.definitions.context import Ctx
from holdfast.definitions.graphs import Graph
from holdfast.definitions.job_types import JobType, job
from holdfast.definitions.lifespan import lifespan
from holdfast.definitions.schedules import Schedule, schedule
from holdfast.definitions.tasks import Call, RetryPolicy, Task, task
from holdfast.errors import Cancel, HoldfastError, PublicError, RateLimited, Reject, Snooze, TaskFailedError
from holdfast.model import Artifact, Job, Message, Progress
from holdfast.settings import Secret, Settings
from holdfast.version import __version__

__all__ = [
    "Artifact",
    "Call",
    "Cancel",
    "Client",
    "Consumer",
    "Ctx",
    "Graph",
    "HoldfastError",
    "Job",
    "JobHandle",
    "JobType",
    "Message",
    "Progress",
    "PublicError",
    "RateLimited",
    "Reject",
    "RetryPolicy",
    "Schedule",
    "Secret",
    "Settings",
    "Snooze",
    "Task",
    "TaskFailedError",
    "__version__",
    "consumer",
    "job",
    "lifespan",
    "schedule",
    "task",
]
