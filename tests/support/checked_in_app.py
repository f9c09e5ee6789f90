"""Tasks of schedules, whose runs the worker reports to Sentry."""

import os
from datetime import timedelta
from pathlib import Path

from holdfast import Ctx, Graph, RetryPolicy, schedule, task


@task(retries=0)
def clean_up() -> None:
    if Path(os.environ["FAIL_FILE"]).exists():
        raise RuntimeError("told to fail")


@task(retry=RetryPolicy(retries=1, base=timedelta(milliseconds=10)))
async def succeed_later(ctx: Ctx) -> None:
    if ctx.attempt == 1:
        raise RuntimeError("the first attempt fails")


@task
def add_one(number: int) -> int:
    return number + 1


chain = Graph("chain")
chain.add(add_one(chain.add(add_one(1), name="first").result), name="second")

clean = schedule(clean_up(), name="Clean up!", cron="0 3 * * *", timezone="Europe/Madrid")
later = schedule(succeed_later(), name="later", every=timedelta(hours=1))
chained = schedule(chain, name="chain", cron="@daily")
fast = schedule(clean_up(), name="fast", every=timedelta(seconds=90))
