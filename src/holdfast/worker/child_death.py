"""Decide the outcome of an attempt whose child process died: who is to blame for the end of the process.

A death is charged to the task only if the task's code had begun and nobody else ended the process. The worker
waits for CRASH_CHARGE_DELAY_S before it charges: whoever kills all processes of a worker reaches the child
first, and a worker that is killed as well never charges.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.worker.attempts import Attempt
from holdfast.worker.outcomes import TaskOutcome, build_error_outcome, build_stop_outcome

CRASH_CHARGE_DELAY_S: Final = 0.5


class ChildDiedError(Exception):
    """A child process died while it started or ran an attempt.

    begun: the child had reported that the task's code began
    killed: the process was killed by a signal; otherwise it ended by itself, or did not become ready in time
    lease_expired: the lease guard ended the process because the lease was not renewed in time
    max_bytes: the memory limit, if the worker killed the process because of it
    """

    def __init__(
        self,
        reason: str,
        *,
        peak_bytes: int = 0,
        lines: Sequence[str] = (),
        begun: bool = False,
        killed: bool = False,
        lease_expired: bool = False,
        max_bytes: int | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.peak_bytes = peak_bytes
        self.lines = lines
        self.begun = begun
        self.killed = killed
        self.lease_expired = lease_expired
        self.max_bytes = max_bytes

    @property
    def is_unexplained(self) -> bool:
        """Whether the task's code ran and the worker does not know what ended the process."""
        return self.begun and not self.lease_expired and self.max_bytes is None

    def to_outcome(self, attempt: Attempt) -> TaskOutcome | None:
        """Return the outcome of the attempt, or None if there is nothing to record."""
        if attempt.stop_reason is not None:
            return build_stop_outcome(attempt, detail=", did not stop, and was killed")
        if self.lease_expired:
            return build_lost_outcome("The lease was not renewed in time, so the child process was ended.")
        if self.max_bytes is not None:
            return self._build_crash_outcome(
                attempt,
                "MemoryExceeded",
                f"The task used {_format_mib(self.peak_bytes)} of memory. "
                f"Its limit is {_format_mib(self.max_bytes)}.",
            )
        if self.begun:
            return self._build_crash_outcome(
                attempt,
                "ProcessDied",
                f"The child process that ran the task {self.reason}. "
                f"Its memory peaked at {_format_mib(self.peak_bytes)}.",
            )
        if self.killed:
            return build_lost_outcome(f"The child process {self.reason} before the task's code began.")
        error = RuntimeError(f"the child process did not start: {self.reason}")
        return build_error_outcome("fail", error, message="\n".join([str(error), *self.lines]))

    def _build_crash_outcome(self, attempt: Attempt, error_type: str, message: str) -> TaskOutcome:
        body = {
            "type": error_type,
            "message": message,
            "traceback": "\n".join(["Last lines:", *self.lines]) if self.lines else None,
            "fingerprint": f"{attempt.claimed.type} {self.reason}",
        }
        return TaskOutcome("crash", msgspec.json.encode(body), message)


def build_lost_outcome(message: str, *, suspect: bool = False) -> TaskOutcome:
    """Build the outcome of an attempt whose process went away through no fault of the task.

    A suspect runs alone in a child process the next time.
    """
    return TaskOutcome("lost", msgspec.json.encode({"message": message, "suspect": suspect}), message)


def describe_exit(exit_code: int) -> str:
    """Return the predicate of a sentence about a process that ended, e.g. "was killed by SIGKILL"."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"was killed by {name}"


def _format_mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.0f} MiB"
