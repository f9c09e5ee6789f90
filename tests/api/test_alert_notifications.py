"""Notifications of alerts: sent by a worker or by the API process, to webhooks, Slack and e-mail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from smtp_server import SmtpServer, run_smtp_server
from web_servers import WebServer, respond

from holdfast import webhooks
from holdfast.alerts import delivery, mail
from holdfast.engine import alerts
from holdfast.engine.connection import Connection, Database
from holdfast.errors import SettingsError
from holdfast.server.api.alert_service import AlertService
from holdfast.settings import Secret, Settings
from holdfast.testing import Clock, wait_until
from holdfast.worker.runtime import WorkerRuntime


@pytest.fixture
async def web() -> AsyncGenerator[WebServer]:
    server = WebServer(respond(b"ok"))
    running = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = running.sockets[0].getsockname()[1]
    yield server
    running.close()


@pytest.fixture
async def smtp() -> AsyncGenerator[SmtpServer]:
    async with run_smtp_server() as server:
        yield server


def allow_local(settings: Settings, smtp: SmtpServer | None = None) -> Settings:
    url = None if smtp is None else Secret(f"smtp://127.0.0.1:{smtp.port}")
    return replace(
        settings,
        egress_allow="127.0.0.0/8",
        smtp_url=url,
        mail_from="jobs@x.test",
        public_url="https://jobs.x.test",
    )


async def fire_alert(conn: Connection, clock: Clock, queue: str = "mail") -> None:
    await conn.execute("select holdfast.submit(jsonb_build_object('type', 't', 'queue', $1::text))", queue)
    await clock.advance(timedelta(seconds=90))
    assert await alerts.evaluate_alerts(conn, force=True) == 1


async def read_channel(conn: Connection, name: str) -> alerts.AlertChannel:
    return next(channel for channel in await alerts.list_alert_channels(conn) if channel.name == name)


async def test_a_worker_sends_to_webhook_slack_and_mail(
    conn: Connection, db: Database, settings: Settings, clock: Clock, web: WebServer, smtp: SmtpServer
) -> None:
    secret = webhooks.generate_webhook_secret()
    await alerts.put_alert_channel(conn, "hook", "webhook", f"{web.url}/hook", secret)
    await alerts.put_alert_channel(conn, "chat", "slack", f"{web.url}/services/T0")
    await alerts.put_alert_channel(conn, "team", "email", "ann@x.test, bob@x.test")
    await fire_alert(conn, clock, "a <b> & c")
    async with Database(db.url, allow_local(settings, smtp)) as database:
        task = delivery.build_alert_task(database)
        stop = asyncio.Event()
        running = asyncio.create_task(WorkerRuntime(database, {task.name: task}).run(stop))
        await wait_until(lambda: len(web.requests) == 2 and len(smtp.messages) == 1)
        stop.set()
        await running
    by_path = {request.target: request for request in web.requests}
    hook, chat = by_path["/hook"], by_path["/services/T0"]
    assert webhooks.verify_webhook(secret, hook.headers, hook.body)
    message: dict[str, Any] = json.loads(hook.body)
    assert message["type"] == "alerts.changed"
    assert message["data"]["alerts"][0]["subject"] == "a <b> & c"
    assert json.loads(chat.body)["text"].startswith(
        "[critical] a &lt;b&gt; &amp; c has no live worker: 1 task"
    )
    [mail_message] = smtp.messages
    assert smtp.recipients == ["ann@x.test", "bob@x.test"]
    assert mail_message["From"] == "jobs@x.test"
    assert "a <b> & c has no live worker" in str(mail_message["Subject"])
    assert "https://jobs.x.test/dashboard/alerts" in str(mail_message.get_payload())
    assert all(channel.sent_at for channel in await alerts.list_alert_channels(conn))


async def test_the_api_sends_what_no_worker_takes_and_only_once(
    conn: Connection, db: Database, settings: Settings, clock: Clock, web: WebServer
) -> None:
    await alerts.put_alert_channel(conn, "chat", "slack", f"{web.url}/services/T0")
    await fire_alert(conn, clock)
    services = [AlertService(db, allow_local(settings)) for _ in range(3)]
    assert [await service.send_late_notifications() for service in services] == [0, 0, 0]
    await clock.advance(timedelta(seconds=31))
    assert sum(await asyncio.gather(*(service.send_late_notifications() for service in services))) == 1
    assert len(web.requests) == 1
    state = "select status from holdfast.all_tasks where type = 'holdfast.alert'"
    assert await conn.fetchval(state) == "succeeded"
    names = await conn.fetch("select stopped_at from holdfast.workers where name like 'api-alerts-%'")
    assert [row["stopped_at"] is not None for row in names] == [True]  # it does not look like a lost worker


async def test_a_failed_notification_is_recorded_and_retried(
    conn: Connection, db: Database, settings: Settings, clock: Clock, smtp: SmtpServer
) -> None:
    smtp.refuse_recipients = True
    await alerts.put_alert_channel(conn, "team", "email", "ann@x.test")
    await fire_alert(conn, clock)
    service = AlertService(db, allow_local(settings, smtp))
    await clock.advance(timedelta(seconds=31))
    assert await service.send_late_notifications() == 1
    channel = await read_channel(conn, "team")
    assert (channel.failures, channel.sent_at) == (1, None)
    assert "ann@x.test" in str(channel.last_error)
    smtp.refuse_recipients = False
    await clock.advance(timedelta(minutes=15))
    assert await service.send_late_notifications() == 1
    channel = await read_channel(conn, "team")
    assert (channel.failures, channel.last_error) == (0, None)


async def test_private_addresses_and_a_missing_mail_server_are_refused(
    conn: Connection, db: Database, settings: Settings, clock: Clock, web: WebServer
) -> None:
    await alerts.put_alert_channel(conn, "chat", "slack", f"{web.url}/services/T0")
    await alerts.put_alert_channel(conn, "team", "email", "ann@x.test")
    await fire_alert(conn, clock)
    await clock.advance(timedelta(seconds=31))
    assert await AlertService(db, settings).send_late_notifications() == 2
    assert web.requests == []
    assert "not allowed" in str((await read_channel(conn, "chat")).last_error)
    assert "No SMTP server is set" in str((await read_channel(conn, "team")).last_error)


async def test_a_deleted_channel_ends_its_notifications(
    conn: Connection, db: Database, settings: Settings, clock: Clock, web: WebServer
) -> None:
    await alerts.put_alert_channel(conn, "chat", "slack", f"{web.url}/services/T0")
    await alerts.send_test_notification(conn, "chat")
    await alerts.delete_alert_channel(conn, "chat")
    await clock.advance(timedelta(seconds=31))
    assert await AlertService(db, allow_local(settings)).send_late_notifications() == 1
    assert web.requests == []
    state = "select status from holdfast.all_tasks where type = 'holdfast.alert'"
    assert await conn.fetchval(state) == "failed"


async def test_mail_signs_in_and_never_sends_a_password_in_the_clear(smtp: SmtpServer) -> None:
    smtp.login = ("jobs", "pass word")
    settings = Settings(smtp_url=Secret(f"smtp://jobs:pass%20word@127.0.0.1:{smtp.port}"))
    server = mail.SmtpServer.from_settings(settings)
    await asyncio.to_thread(mail.send_mail, server, ["ann@x.test"], "two\nlines\r\nBcc: all@x.test", "text")
    [message] = smtp.messages
    assert message["Subject"] == "two lines Bcc: all@x.test"
    assert message["Bcc"] is None
    elsewhere = replace(server, host="127.1")  # this machine, but not by a name that is trusted
    with pytest.raises(Exception, match="offers no TLS"):
        await asyncio.to_thread(mail.send_mail, elsewhere, ["ann@x.test"], "s", "text")
    assert len(smtp.messages) == 1


@pytest.mark.parametrize("url", ["http://x.test", "smtp://", "smtp://x:notaport", "nonsense"])
def test_a_bad_smtp_url_names_the_setting(url: str) -> None:
    with pytest.raises(SettingsError) as error:
        mail.SmtpServer.from_settings(Settings(smtp_url=Secret(url)))
    assert error.value.field == "smtp_url"
