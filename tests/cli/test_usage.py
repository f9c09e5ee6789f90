"""`holdfast usage` on a real database."""

from __future__ import annotations

import uuid

import pytest
from shell import Captured, Shell

from holdfast.engine.connection import Connection
from holdfast.settings import Secret


@pytest.fixture
def shell(url: Secret, capsys: Captured) -> Shell:
    return Shell(url, capsys)


def test_usage_is_shown_by_owner_and_by_job(shell: Shell) -> None:
    job = uuid.uuid4()

    async def record_calls(connection: Connection) -> None:
        for owner, cost in (("ann", "0.5"), ("ann", "0.25"), ("bob", None)):
            await connection.execute(
                "select holdfast.record_provider_call($1, 'text', 'host', 'm', 'succeeded', $2, $3,"
                " p_tokens_in => 100, p_cost => $4::text::numeric)",
                *(uuid.uuid4(), owner, job if owner == "ann" else None, cost),
            )

    assert shell.json("usage") == []
    shell.query(record_calls)
    [total] = shell.json("usage")
    assert (total["kind"], total["calls"], total["tokens_in"], total["cost"]) == ("text", 3, 300, 0.75)
    assert total["unpriced"] == 1
    by_owner = shell.json("usage", "--by", "owner", "--by", "day")
    assert [(row["owner"], row["calls"]) for row in by_owner] == [("ann", 2), ("bob", 1)]
    assert len(by_owner[0]["day"]) == len("2026-11-17")
    assert shell.json("usage", "--owner", "bob")[0]["calls"] == 1
    assert shell.json("usage", "--until", "2001-01-01") == []
    assert [row["calls"] for row in shell.json("usage", "--job", str(job))] == [2]
    assert shell("usage").split("\t")[:4] == ["text", "host", "m", "3"]
