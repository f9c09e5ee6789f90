"""Add an alert rule, silence alerts of a queue during an import, and acknowledge what fires."""

import asyncio
from datetime import timedelta

from holdfast import AlertRule, Client

client = Client()


async def watch_mail() -> None:
    await client.alerts.put_rule(
        AlertRule(name="mail-slow", kind="queue_age", subject="mail-*", threshold=30)
    )
    await client.alerts.silence(timedelta(hours=2), by="import", subject="mail", reason="import runs")
    for alert in await client.alerts.list():
        print(alert.severity, alert.rule, alert.subject, alert.size)
        await client.alerts.acknowledge(alert.id, by="ann", note="looking into it")


if __name__ == "__main__":
    asyncio.run(watch_mail())
