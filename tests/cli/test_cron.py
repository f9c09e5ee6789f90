"""`holdfast cron` on a real database."""

from __future__ import annotations

import pytest
from shell import Captured, Shell

from holdfast.engine import audit
from holdfast.settings import Secret


@pytest.fixture
def shell(url: Secret, capsys: Captured) -> Shell:
    return Shell(url, capsys)


def test_schedule_is_added_changed_run_paused_and_deleted(shell: Shell) -> None:
    assert shell("cron", "list") == ""
    shell("cron", "add", "nightly", "report", "kind=sales", "rows:=3", "--cron", "0 3 * * *",
          "--timezone", "Europe/Madrid", "--queue", "slow")  # fmt: skip
    [created] = shell.json("cron", "show", "nightly")
    assert created["job"] == {"type": "report", "queue": "slow", "args": {"kind": "sales", "rows": 3}}
    assert (created["state"], created["timezone"], created["missed"]) == (
        "active",
        "Europe/Madrid",
        "coalesce",
    )
    assert shell("cron", "list").split("\t")[:4] == ["nightly", "0 3 * * *", "Europe/Madrid", "report"]
    assert "already" in shell("cron", "add", "nightly", "report", "--every", "1h", code=4)
    shell("cron", "add", "nightly", "report", "--every", "90m", "--replace")
    assert shell.json("cron", "show", "nightly")[0]["when"] == "every 5400s"
    assert len(shell("cron", "preview", "nightly", "-n", "4").splitlines()) == 4
    [ran] = shell.json("cron", "run", "nightly")
    assert shell.json("cron", "show", "nightly")[0]["last_job"] == ran["job"]
    assert "is paused" in shell("cron", "pause", "nightly")
    assert shell.json("cron", "list")[0]["state"] == "paused"
    assert "is active again" in shell("cron", "resume", "nightly")
    assert "was not paused" in shell("cron", "resume", "nightly")
    assert "--yes" in shell("cron", "delete", "nightly", code=5)
    assert "is deleted" in shell("cron", "delete", "nightly", "--yes")
    shell("cron", "show", "nightly", code=3)
    actions = [entry.action.removeprefix("schedule.") for entry in shell.query(audit.list_audit_entries)]
    assert actions == ["delete", "resume", "resume", "pause", "run", "put", "put"]


def test_preview_of_an_expression_that_is_not_stored(shell: Shell) -> None:
    times = shell("cron", "preview", "--cron", "0 0 29 2 *", "-n", "2").splitlines()
    assert [time[4:10] for time in times] == ["-02-29", "-02-29"]
    shell("cron", "preview", code=2)
    shell("cron", "preview", "x", "--every", "1h", code=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cron", "0 0 30 2 *"], "matches no day"),
        (["--cron", "0 25 * * *"], "hour"),
        (["--cron", "@daily", "--timezone", "Mars/Base"], "Time zone"),
        (["--every", "10ms"], "1 second"),
        ([], "either a cron expression"),
    ],
)
def test_invalid_schedule_is_named(shell: Shell, options: list[str], message: str) -> None:
    assert message in shell("cron", "add", "s", "t", *options, code=2)
