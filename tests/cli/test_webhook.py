"""`holdfast webhook` and `holdfast file extend` on a real database."""

from __future__ import annotations

from uuid import UUID

import pytest
from shell import Captured, Shell

from holdfast.engine import artifacts, audit, webhooks
from holdfast.engine.connection import Connection
from holdfast.settings import Secret


@pytest.fixture
def shell(url: Secret, capsys: Captured) -> Shell:
    return Shell(url, capsys)


async def create_webhook(connection: Connection) -> UUID:
    return await webhooks.create_webhook(
        connection, url="https://example.org/x", events=["job.failed"], secret="whsec_" + "A" * 44
    )


def test_webhook_is_listed_enabled_disabled_and_deleted(shell: Shell) -> None:
    webhook_id = shell.query(create_webhook)
    shell.query(lambda c: webhooks.record_webhook_result(c, webhook_id, "This address is gone.", gone=True))
    [listed] = shell.json("webhook", "list")
    assert (listed["state"], listed["problem"]) == ("disabled", "This address is gone.")
    assert "is enabled" in shell("webhook", "enable", str(webhook_id))
    assert shell.json("webhook", "list")[0]["state"] == "active"
    assert "is disabled" in shell("webhook", "disable", str(webhook_id))
    actions = [entry.action for entry in shell.query(audit.list_audit_entries)]
    assert actions[:2] == ["webhook.disabled", "webhook.enabled"]
    assert "--yes" in shell("webhook", "delete", str(webhook_id), code=5)
    assert "is deleted" in shell("webhook", "delete", str(webhook_id), "--yes")
    assert "does not exist" in shell("webhook", "enable", str(webhook_id), code=3)
    shell("webhook", "enable", "x", code=2)


def test_file_ttl_is_extended(shell: Shell) -> None:
    async def put(connection: Connection) -> UUID:
        staged = await artifacts.stage_artifact_without_task(
            connection, {"name": "a", "content_type": "text/plain"}
        )
        await artifacts.record_artifact_upload(connection, staged.id, None, size=1, sha256="0" * 64, meta={})
        return staged.id

    file = str(shell.query(put))
    assert "kept until" in shell("file", "extend", file, "30d")
    assert "kept forever" in shell("file", "extend", file, "forever")
    shell("file", "extend", str(UUID(int=1)), "30d", code=3)
    shell("file", "extend", file, "soon", code=2)
    shell("file", "extend", "x", "30d", code=2)
