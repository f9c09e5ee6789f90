"""`holdfast webhook` and `holdfast file extend` on a real database."""

from __future__ import annotations

from uuid import UUID

import pytest
from shell import Captured, Shell

from holdfast.engine import access, artifacts, webhooks
from holdfast.engine.connection import Connection
from holdfast.settings import Secret


@pytest.fixture
def shell(url: Secret, capsys: Captured) -> Shell:
    return Shell(url, capsys)


async def made(connection: Connection) -> UUID:
    return await webhooks.put_webhook(
        connection, url="https://example.org/x", events=["job.failed"], secret="whsec_x"
    )


def test_a_webhook_that_was_switched_off_is_listed_and_switched_on(shell: Shell) -> None:
    hook = shell.ask(made)
    shell.ask(lambda c: webhooks.note_delivery(c, hook, "This address is gone.", gone=True))
    [listed] = shell.json("webhook", "list")
    assert (listed["state"], listed["trouble"]) == ("off", "This address is gone.")
    assert "is on" in shell("webhook", "on", str(hook))
    assert shell.json("webhook", "list")[0]["state"] == "on"
    assert "is off" in shell("webhook", "off", str(hook))
    actions = [entry.action for entry in shell.ask(access.list_audit)]
    assert actions[:2] == ["webhook.off", "webhook.on"]
    assert "--yes" in shell("webhook", "rm", str(hook), code=5)
    assert "is gone" in shell("webhook", "rm", str(hook), "--yes")
    assert "no webhook" in shell("webhook", "on", str(hook), code=3)
    shell("webhook", "on", "x", code=2)


def test_one_file_is_kept_longer(shell: Shell) -> None:
    async def put(connection: Connection) -> UUID:
        staged = await artifacts.stage_file(connection, {"name": "a", "content_type": "text/plain"})
        await artifacts.record(connection, staged.id, None, size=1, sha256="0" * 64, meta={})
        return staged.id

    file = str(shell.ask(put))
    assert "Kept until" in shell("file", "extend", file, "30d")
    assert "for ever" in shell("file", "extend", file, "ever")
    shell("file", "extend", str(UUID(int=1)), "30d", code=3)
    shell("file", "extend", file, "soon", code=2)
    shell("file", "extend", "x", "30d", code=2)
