"""`client.alerts`: read, acknowledge and silence alerts, and change the rules that find them."""

from __future__ import annotations

import builtins
from datetime import UTC, datetime, timedelta
from uuid import UUID

from holdfast.client.connections import ClientConnections
from holdfast.engine import alerts
from holdfast.engine.alerts import Alert, AlertRule, AlertSilence


class Alerts:
    """`client.alerts`: the problems that alert rules found, and the rules themselves.

    Workers and the API evaluate the rules; a program that only reads alerts needs nothing else. Each shard
    has its own alerts: use `client.shard(n).alerts`.
    """

    def __init__(self, connections: ClientConnections) -> None:
        self._connections = connections

    async def list(self, *, resolved: bool = False, limit: int = 100) -> builtins.list[Alert]:
        """Return the alerts that fire, by severity and size, or those that have ended, newest first."""
        async with self._connections.connection() as connection:
            return await alerts.list_alerts(connection, resolved=resolved, limit=limit)

    async def acknowledge(self, alert: UUID, *, by: str, note: str | None = None) -> bool:
        """Record that somebody takes care of an alert: no more reminders are sent.

        Return False if the alert is not firing.
        """
        async with self._connections.connection() as connection:
            return await alerts.acknowledge_alert(connection, alert, by, note)

    async def silence(
        self,
        until: datetime | timedelta,
        *,
        by: str,
        rule: str | None = None,
        subject: str | None = None,
        reason: str | None = None,
    ) -> UUID:
        """Send no notifications until a time, or for a period from now. Return the id of the silence.

        `rule` and `subject`, such as a queue, select alerts. Without them the silence is for all alerts.
        """
        end = datetime.now(UTC) + until if isinstance(until, timedelta) else until
        async with self._connections.connection() as connection:
            return await alerts.silence_alerts(connection, end, by, rule=rule, subject=subject, reason=reason)

    async def end_silence(self, silence: UUID) -> bool:
        """End a silence. Return False if it does not exist or has ended."""
        async with self._connections.connection() as connection:
            return await alerts.end_alert_silence(connection, silence)

    async def list_silences(self) -> builtins.list[AlertSilence]:
        """Return the silences that have not ended."""
        async with self._connections.connection() as connection:
            return await alerts.list_alert_silences(connection)

    async def put_rule(self, rule: AlertRule) -> None:
        """Create an alert rule, or replace the rule with this name."""
        async with self._connections.connection() as connection:
            await alerts.put_alert_rule(connection, rule)

    async def delete_rule(self, name: str) -> bool:
        """Delete a rule and end its alerts. Return False if the rule does not exist."""
        async with self._connections.connection() as connection:
            return await alerts.delete_alert_rule(connection, name)

    async def list_rules(self) -> builtins.list[AlertRule]:
        """Return all rules, with the number of alerts that fire."""
        async with self._connections.connection() as connection:
            return await alerts.list_alert_rules(connection)
