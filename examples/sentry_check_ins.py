"""A schedule whose runs check in with Sentry."""

import os
from pathlib import Path

from sentry_sdk.crons import monitor

from holdfast import schedule, task


@task(retries=0)
def clean_up() -> None:
    with monitor(
        monitor_slug="clean-up",
        monitor_config={
            "schedule": {"type": "crontab", "value": "0 3 * * *"},
            "timezone": "Europe/Madrid",
            "checkin_margin": 5,
            "max_runtime": 30,
        },
    ):
        for path in Path(os.environ["SCRATCH_FOLDER"]).iterdir():
            path.unlink()


nightly = schedule(clean_up(), name="clean-up", cron="0 3 * * *", timezone="Europe/Madrid")
