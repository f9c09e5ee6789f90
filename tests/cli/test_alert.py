"""`holdfast alert` on a real database."""

from __future__ import annotations

from datetime import timedelta

import pytest
from shell import Captured, Shell

from holdfast.engine import audit, scratch
from holdfast.engine.connection import Connection
from holdfast.settings import Secret


@pytest.fixture
def shell(url: Secret, capsys: Captured) -> Shell:
    return Shell(url, capsys)


async def submit_to_unserved_queue(connection: Connection) -> None:
    await connection.execute("""select holdfast.submit('{"type": "send", "queue": "mail"}')""")
    await scratch.advance_database_clock(connection, timedelta(seconds=90))


def test_alerts_are_listed_shown_acknowledged_and_silenced(shell: Shell) -> None:
    shell.query(submit_to_unserved_queue)
    assert shell.json("alert", "check") == [{"changed": 1}]
    [alert] = shell.json("alert", "list", "-n", "5")
    assert (alert["rule"], alert["severity"], alert["subject"]) == ("no-worker", "critical", "mail")
    assert alert["problem"] == "has no live worker: 1 task waiting, the oldest for 2 minutes"
    short = alert["id"][-8:]
    assert "mail" in shell("alert", "show", short)
    assert shell.json("alert", "show", alert["id"])[0]["threshold"] == 60
    assert "Acknowledged" in shell("alert", "ack", short, "--note", "looking")
    assert "acknowledged by" in shell.json("alert", "list")[0]["state"]
    [silence] = shell.json("alert", "silence", short, "--for", "2h", "--reason", "known")
    [listed] = shell.json("alert", "silences")
    assert (listed["id"], listed["rule"], listed["subject"]) == (silence["silence"], "no-worker", "mail")
    assert "silenced" in shell.json("alert", "list")[0]["state"]
    assert "has ended" in shell("alert", "unsilence", silence["silence"])
    shell("alert", "unsilence", silence["silence"], code=3)
    assert shell.json("alert", "list", "--resolved") == []
    actions = {entry.action for entry in shell.query(audit.list_audit_entries)}
    assert actions >= {"alert.acknowledge", "alert.silence", "alert.end_silence"}
    shell("alert", "show", "zzz", code=3)
    shell("alert", "silence", "--rule", "nosuch", "--for", "1h", code=3)


def test_rules_are_set_changed_and_deleted(shell: Shell) -> None:
    assert "needs --above" in shell("alert", "rule", "set", "slow", "--kind", "queue_age", code=2)
    assert "Add --kind" in shell("alert", "rule", "set", "slow", "--above", "5m", code=2)
    assert "not a value" in shell(
        "alert", "rule", "set", "slow", "--kind", "queue_age", "--above", "x", code=2
    )
    assert "5 minutes" in shell(
        "alert", "rule", "set", "slow", "--kind", "queue_age", "--above", "5m", "--subject", "mail-*"
    )
    shell("alert", "rule", "set", "slow", "--severity", "critical", "--until", "1m", "--for", "30s")
    rules = {rule["name"]: rule for rule in shell.json("alert", "rule", "list")}
    slow = rules["slow"]
    assert (slow["threshold"], slow["clear_below"], slow["for_s"]) == (300, 60, 30)
    assert (slow["severity"], slow["subject"], slow["above"]) == ("critical", "mail-*", "5 minutes")
    shell("alert", "rule", "set", "big", "--kind", "storage", "--above", "50GB")
    shell("alert", "rule", "set", "errors", "--kind", "failure_rate", "--above", "10%")
    rules = {rule["name"]: rule for rule in shell.json("alert", "rule", "list")}
    assert (rules["big"]["threshold"], rules["errors"]["threshold"]) == (50e9, 0.1)
    assert "is disabled" in shell("alert", "rule", "disable", "slow")
    assert shell.json("alert", "rule", "enable", "slow") == [{"enabled": "slow"}]
    assert "--yes" in shell("alert", "rule", "delete", "slow", code=5)
    assert "is deleted" in shell("alert", "rule", "delete", "slow", "--yes")
    assert "does not exist" in shell("alert", "rule", "enable", "slow", code=3)


def test_channels_are_added_tested_and_deleted(shell: Shell) -> None:
    assert "must begin with" in shell("alert", "channel", "add", "hook", "webhook", "nonsense", code=2)
    assert "Invalid e-mail address" in shell("alert", "channel", "add", "team", "email", "ann", code=2)
    [added] = shell.json("alert", "channel", "add", "hook", "webhook", "https://x.test/hook?key=1")
    assert added["secret"].startswith("whsec_")
    shell("alert", "channel", "add", "chat", "slack", "https://hooks.x.test/services/T0/SECRET")
    listed = {channel["name"]: channel for channel in shell.json("alert", "channel", "list")}
    assert listed["chat"]["target"] == "https://hooks.x.test/…"
    assert listed["hook"]["target"] == "https://x.test/hook"
    [test] = shell.json("alert", "channel", "test", "chat")
    assert shell.json("job", "show", test["job"])[0]["status"] == "queued"
    assert "is disabled" in shell("alert", "channel", "disable", "chat")
    assert "is enabled" in shell("alert", "channel", "enable", "chat")
    assert "is deleted" in shell("alert", "channel", "delete", "chat", "--yes")
    assert "does not exist" in shell("alert", "channel", "test", "chat", code=3)
