"""Tasks whose runs are measured, traced and reported."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Annotated

import msgspec
from opentelemetry import trace

from holdfast import Ctx, Reject, task


@task(queue="watched")
async def double(x: int) -> int:
    with trace.get_tracer("app").start_as_current_span("inside double"):
        return 2 * x


@task(queue="watched")
async def block_event_loop() -> None:
    """Blocks the loop until it is allowed to go on."""
    record = Path(os.environ["RECORD"])
    with record.open("a") as file:
        file.write(f"{os.getpid()} blocking\n")
    while not record.with_name("go").exists():
        time.sleep(0.01)


@task(queue="watched", retries=0)
async def raise_error() -> None:
    raise OSError("no bread")


@task(queue="watched")
async def submit_another(ctx: Ctx) -> None:
    await ctx.submit(double(3), detached=True)


@task(queue="watched")
async def reject() -> None:
    raise Reject("closed on Sundays")


Nickname = Annotated[str, msgspec.Meta(extra_json_schema={"format": "password"})]


@task(queue="watched", retries=0)
async def fail_with_secrets(api_token: str, nickname: Nickname) -> None:
    """Fails with its secrets in the message, in the cause, in local variables and in a log line."""
    copies = {"detail": [api_token, nickname], "text": f"{api_token} and {nickname}"}
    logging.getLogger("app").error("about to log in with %s", api_token)
    try:
        raise LookupError(f"no user {nickname}")
    except LookupError as error:
        raise OSError(f"cannot log in with {copies['text']}") from error
