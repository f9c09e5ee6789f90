"""Alert rules: when they fire and end, what they look at, and what is sent."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from holdfast.engine.connection import Connection
from holdfast.testing.clock import Clock

SECRET = "whsec_" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo="


@pytest.fixture(autouse=True)
async def only_rules_of_the_test(conn: Connection) -> None:
    """Switch the built-in rules off: each test enables the one that it is about."""
    await conn.execute("select holdfast.set_alert_rule_enabled(name, false) from holdfast.alert_rules")


async def evaluate(conn: Connection) -> int | None:
    count: int | None = await conn.fetchval("select holdfast.evaluate_alerts(0)")
    return count


async def list_alerts(conn: Connection, *, resolved: bool = False) -> list[dict[str, Any]]:
    rows = await conn.fetch("select * from holdfast.list_alerts($1)", resolved)
    return [json.loads(row[0]) for row in rows]


async def list_notifications(conn: Connection) -> list[dict[str, Any]]:
    rows = await conn.fetch(
        "select t.args::text from holdfast.tasks t join holdfast.lanes l on l.id = t.lane_id"
        " where l.queue = 'alerts' order by t.pos"
    )
    return [json.loads(row[0]) for row in rows]


async def submit(conn: Connection, count: int = 1, queue: str = "mail") -> None:
    for _ in range(count):
        await conn.execute(
            "select holdfast.submit(jsonb_build_object('type', 'send', 'queue', $1::text))", queue
        )


async def set_rule(conn: Connection, kind: str, threshold: float, **options: object) -> None:
    names = ", ".join(f"p_{name} => ${n}" for n, name in enumerate(options, start=4))
    await conn.execute(
        f"select holdfast.put_alert_rule($1, $2, $3{', ' + names if names else ''})",
        kind.replace("_", "-"),
        kind,
        threshold,
        *options.values(),
    )


async def test_a_queue_without_a_worker_fires_once_and_ends_when_the_queue_is_empty(
    conn: Connection, clock: Clock
) -> None:
    await set_rule(conn, "no_worker", 60, clear_below=0.0, clear_after_s=60.0)
    await conn.execute("select holdfast.put_alert_channel('hook', 'webhook', 'https://x.test/', $1)", SECRET)
    await submit(conn, 3)
    assert await evaluate(conn) == 0
    await clock.advance(timedelta(seconds=90))
    assert await evaluate(conn) == 1
    [alert] = await list_alerts(conn)
    assert (alert["subject"], alert["size"], alert["status"], alert["threshold"]) == ("mail", 3, "firing", 60)
    assert await evaluate(conn) == 0
    [notification] = await list_notifications(conn)
    assert notification["channel"] == "hook"
    assert [each["event"] for each in notification["alerts"]] == ["firing"]

    await conn.execute('select holdfast.cancel_jobs(\'{"type": "send"}\')')
    assert await evaluate(conn) == 0  # it was low for less than a minute
    await clock.advance(timedelta(seconds=61))
    assert await evaluate(conn) == 1
    assert await list_alerts(conn) == []
    assert [alert["subject"] for alert in await list_alerts(conn, resolved=True)] == ["mail"]
    assert [n["alerts"][0]["event"] for n in await list_notifications(conn)] == ["firing", "resolved"]


async def test_a_value_between_the_two_limits_changes_nothing(conn: Connection, clock: Clock) -> None:
    await set_rule(conn, "queue_age", 600, clear_below=300.0, clear_after_s=0.0)
    await submit(conn)
    await clock.advance(timedelta(seconds=400))
    assert await evaluate(conn) == 0
    await clock.advance(timedelta(seconds=300))
    assert await evaluate(conn) == 1
    await conn.execute('select holdfast.cancel_jobs(\'{"type": "send"}\')')
    await submit(conn)
    await clock.advance(timedelta(seconds=400))
    assert await evaluate(conn) == 0
    assert len(await list_alerts(conn)) == 1
    await conn.execute('select holdfast.cancel_jobs(\'{"type": "send"}\')')
    await submit(conn)
    await clock.advance(timedelta(seconds=200))
    assert await evaluate(conn) == 1
    assert await list_alerts(conn) == []


async def test_a_short_peak_does_not_fire_a_rule_with_a_duration(conn: Connection, clock: Clock) -> None:
    await set_rule(conn, "queue_age", 10, for_s=120.0)
    await submit(conn)
    await clock.advance(timedelta(seconds=20))
    assert await evaluate(conn) == 0
    assert await conn.fetchval("select status from holdfast.alerts") == "pending"
    await conn.execute('select holdfast.cancel_jobs(\'{"type": "send"}\')')
    assert await evaluate(conn) == 0
    assert await conn.fetchval("select count(*) from holdfast.alerts") == 0
    await submit(conn)
    await clock.advance(timedelta(seconds=20))
    await evaluate(conn)
    await clock.advance(timedelta(seconds=121))
    assert await evaluate(conn) == 1


async def test_a_rule_that_fails_does_not_stop_the_others(conn: Connection, clock: Clock) -> None:
    await set_rule(conn, "no_worker", 60)
    await set_rule(conn, "queue_paused", 0)
    await conn.execute("update holdfast.alert_rules set for_s = 'NaN' where name = 'no-worker'")
    await submit(conn)
    await submit(conn, queue="slow")
    await conn.execute("select holdfast.pause_queue('slow', 'maintenance', 'ann')")
    await clock.advance(timedelta(seconds=90))
    assert await evaluate(conn) == 1
    assert [alert["subject"] for alert in await list_alerts(conn)] == ["slow"]
    assert await conn.fetchval("select last_error from holdfast.alert_rules where name = 'no-worker'")
    assert (
        await conn.fetchval("select subject from holdfast.maintenance_problems where kind = 'alert rule'")
        == "no-worker"
    )
    await set_rule(conn, "no_worker", 60)
    assert await evaluate(conn) == 1
    assert await conn.fetchval("select count(*) from holdfast.maintenance_problems") == 0


async def test_all_callers_together_evaluate_once_per_interval(
    conn: Connection, second: Connection, clock: Clock
) -> None:
    await set_rule(conn, "no_worker", 60)
    assert await conn.fetchval("select holdfast.evaluate_alerts()") == 0
    assert await second.fetchval("select holdfast.evaluate_alerts()") is None
    await clock.advance(timedelta(seconds=31))
    async with conn.transaction():
        assert await conn.fetchval("select holdfast.evaluate_alerts()") == 0
        assert await second.fetchval("select holdfast.evaluate_alerts()") is None
    assert await second.fetchval("select holdfast.evaluate_alerts()") is None


async def test_a_silence_keeps_quiet_and_a_reminder_follows_it(conn: Connection, clock: Clock) -> None:
    await conn.execute("select holdfast.put_alert_channel('team', 'email', 'ann@x.test, bob@x.test')")
    await set_rule(conn, "no_worker", 60, repeat_s=600.0)
    silence = await conn.fetchval(
        "select holdfast.silence_alerts(holdfast.now() + interval '1 hour', 'no-worker', 'mail', 'ann')"
    )
    await submit(conn)
    await clock.advance(timedelta(seconds=90))
    assert await evaluate(conn) == 0
    [alert] = await list_alerts(conn)
    assert alert["silenced_until"]
    assert await list_notifications(conn) == []
    assert await conn.fetchval("select holdfast.end_alert_silence($1)", silence)
    assert not await conn.fetchval("select holdfast.end_alert_silence($1)", silence)
    assert await evaluate(conn) == 1
    await clock.advance(timedelta(minutes=11))
    await evaluate(conn)
    assert [n["alerts"][0]["event"] for n in await list_notifications(conn)] == ["firing", "reminder"]
    assert await conn.fetchval("select holdfast.acknowledge_alert($1, 'ann', 'looking')", alert["id"])
    await clock.advance(timedelta(minutes=11))
    await evaluate(conn)
    assert len(await list_notifications(conn)) == 2
    [alert] = await list_alerts(conn)
    assert (alert["acknowledged_by"], alert["note"]) == ("ann", "looking")


async def test_many_queues_are_one_notification_per_channel(conn: Connection, clock: Clock) -> None:
    await conn.execute("select holdfast.put_alert_channel('a', 'slack', 'https://x.test/services/T1')")
    await conn.execute("select holdfast.put_alert_channel('b', 'slack', 'https://x.test/services/T2')")
    await set_rule(conn, "no_worker", 60, channels=["a"])
    for n in range(60):
        await submit(conn, queue=f"q{n}")
    await clock.advance(timedelta(seconds=90))
    assert await evaluate(conn) == 60
    [notification] = await list_notifications(conn)
    assert (notification["channel"], len(notification["alerts"]), notification["more"]) == ("a", 50, 10)


async def test_alerts_are_listed_by_severity_and_size(conn: Connection, clock: Clock) -> None:
    await set_rule(conn, "no_worker", 60, severity="warning", subject="small*")
    await conn.execute(
        "select holdfast.put_alert_rule('big', 'no_worker', 60, p_subject => 'b%g', p_severity => 'critical')"
    )
    await submit(conn, 1, "small-1")
    await submit(conn, 5, "small-5")
    await submit(conn, 2, "b%g")
    await submit(conn, 9, "bigger")  # % is no pattern
    await clock.advance(timedelta(seconds=90))
    assert await evaluate(conn) == 3
    assert [alert["subject"] for alert in await list_alerts(conn)] == ["b%g", "small-5", "small-1"]


async def test_failures_lost_workers_and_schedules(conn: Connection, clock: Clock) -> None:
    await set_rule(conn, "failure_rate", 0.25, min_count=4, window_s=900.0)
    await set_rule(conn, "failed_jobs", 0, severity="info")
    await set_rule(conn, "lost_workers", 0, window_s=1800.0)
    await set_rule(conn, "schedule_missed", 120)
    await conn.execute("""select holdfast.put_schedule('nightly', '{"type": "t"}', null, 3600)""")
    await submit(conn, 4)
    tasks = await conn.fetch("select * from holdfast.claim_tasks('w1', 10)")
    for n, task in enumerate(tasks):
        await conn.execute(
            "select holdfast.fail_task($1, $2, $3, 'no', 'E', null, false)"
            if n < 2
            else "select holdfast.complete_task($1, $2, $3)",
            task["id"],
            task["attempt"],
            task["nonce"],
        )
    await clock.advance(timedelta(minutes=3))
    await evaluate(conn)
    alerts = {alert["kind"]: alert for alert in await list_alerts(conn)}
    assert alerts.keys() == {"failure_rate", "failed_jobs", "lost_workers"}
    assert (alerts["failure_rate"]["value"], alerts["failure_rate"]["size"]) == (0.5, 2)
    assert alerts["lost_workers"]["detail"]["names"] == ["w1"]
    await clock.advance(timedelta(hours=1, minutes=5))
    await evaluate(conn)
    assert "schedule_missed" in {alert["kind"] for alert in await list_alerts(conn)}


async def test_dead_letters_in_a_queue_of_their_own_and_in_the_archive(conn: Connection) -> None:
    await set_rule(conn, "dead_letters", 0, window_s=3600.0)
    for queue in ("plain", "orders"):
        await conn.execute("select pgmq.create($1)", queue)
        await conn.execute("select pgmq.send($1, '{}')", queue)
    await conn.execute("select holdfast.put_message_policy('orders', 5, 'orders_dead')")
    assert await evaluate(conn) == 0
    for queue in ("plain", "orders"):
        receipt = await conn.fetchval("select receipt from holdfast.read_messages($1)", queue)
        await conn.fetch("select holdfast.move_to_dead_letters($1, $2, 'broken')", queue, [receipt])
    await evaluate(conn)
    assert sorted((a["subject"], a["size"]) for a in await list_alerts(conn)) == [("orders", 1), ("plain", 1)]


async def test_storage_and_old_snapshots(conn: Connection, second: Connection) -> None:
    await set_rule(conn, "storage", 1000)
    await set_rule(conn, "old_snapshot", 0)
    # The owner of the schema sees transactions of other roles only with this right.
    await conn.execute("grant pg_read_all_stats to holdfast_owner")
    try:
        async with second.transaction(isolation="repeatable_read"):
            await second.fetchval("select count(*) from holdfast.jobs")
            await evaluate(conn)
            kinds = {alert["kind"] for alert in await list_alerts(conn)}
    finally:
        await conn.execute("revoke pg_read_all_stats from holdfast_owner")
    assert kinds == {"storage", "old_snapshot"}


@pytest.mark.parametrize(
    ("kind", "target", "secret", "field"),
    [
        ("webhook", "nonsense", SECRET, "target"),
        ("webhook", "https://x.test/", "short", "secret"),
        ("slack", "ftp://x.test/", None, "target"),
        ("slack", "https://u:p@x.test/", None, "target"),
        ("email", "ann", None, "target"),
        ("email", "ann@x.test, bob@", None, "target"),
        ("email", "ann@x.test\r\nBcc: all@x.test", None, "target"),
        ("email", ",".join(["ann@x.test"] * 21), None, "target"),
        ("pager", "ann@x.test", None, "kind"),
    ],
)
async def test_a_bad_address_is_refused_with_the_name_of_the_field(
    conn: Connection, kind: str, target: str, secret: str | None, field: str
) -> None:
    with pytest.raises(asyncpg.PostgresError) as error:
        await conn.execute("select holdfast.put_alert_channel('c', $1, $2, $3)", kind, target, secret)
    assert (error.value.sqlstate, error.value.column_name) == ("HF004", field)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"kind": "weather"}, "kind"),
        ({"threshold": float("nan")}, "threshold"),
        ({"threshold": -1.0}, "threshold"),
        ({"kind": "failure_rate", "threshold": 2.0}, "threshold"),
        ({"clear_below": 100.0}, "clear_below"),
        ({"severity": "loud"}, "severity"),
        ({"for_s": float("inf")}, "for_s"),
        ({"window_s": 1e9}, "window_s"),
        ({"repeat_s": 1.0}, "repeat_s"),
        ({"channels": ["nobody"]}, "channels"),
        ({"subject": "a\x01"}, "subject"),
    ],
)
async def test_a_bad_rule_is_refused_with_the_name_of_the_field(
    conn: Connection, options: dict[str, Any], field: str
) -> None:
    values = {"name": "r", "kind": "queue_age", "threshold": 60.0, **options}
    call = ", ".join(f"p_{name} => ${n}" for n, name in enumerate(values, start=1))
    with pytest.raises(asyncpg.PostgresError) as error:
        await conn.execute(f"select holdfast.put_alert_rule({call})", *values.values())
    assert (error.value.sqlstate, error.value.column_name) == ("HF004", field)


async def test_deleting_a_rule_ends_its_alerts_and_a_channel_leaves_its_rules(
    conn: Connection, clock: Clock
) -> None:
    await conn.execute("select holdfast.put_alert_channel('team', 'email', 'ann@x.test')")
    await set_rule(conn, "no_worker", 60, channels=["team"])
    await submit(conn)
    await clock.advance(timedelta(seconds=90))
    await evaluate(conn)
    assert await conn.fetchval("select holdfast.delete_alert_channel('team')")
    assert await conn.fetchval("select channels from holdfast.alert_rules where name = 'no-worker'") == []
    assert await conn.fetchval("select holdfast.delete_alert_rule('no-worker')")
    assert await list_alerts(conn) == []
    assert not await conn.fetchval("select holdfast.delete_alert_rule('no-worker')")


async def test_late_notifications_are_noticed(conn: Connection, clock: Clock) -> None:
    await conn.execute("select holdfast.put_alert_channel('team', 'email', 'ann@x.test')")
    assert not await conn.fetchval("select holdfast.has_late_alert_notifications()")
    await conn.execute("select holdfast.test_alert_channel('team')")
    assert not await conn.fetchval("select holdfast.has_late_alert_notifications()")
    await clock.advance(timedelta(seconds=31))
    assert await conn.fetchval("select holdfast.has_late_alert_notifications()")
    [task] = await conn.fetch("select * from holdfast.claim_tasks('api', 1, null, '{alerts}')")
    assert not await conn.fetchval("select holdfast.has_late_alert_notifications()")
    await clock.advance(timedelta(minutes=3))  # whoever sent it died
    assert await conn.fetchval("select holdfast.has_late_alert_notifications()")
    assert task["queue"] == "alerts"
