"""An application that the worker can import and its child processes cannot."""

from __future__ import annotations

import sys

from recorder_app import record, record_number

from holdfast import Ctx, task

__all__ = ["record_number"]

if "child" in sys.argv[0]:
    raise RuntimeError("the licence server is away")


@task(queue="record", retries=0, process=True)
def never_starts(ctx: Ctx) -> None:
    record("began", "never_starts", ctx.attempt)
