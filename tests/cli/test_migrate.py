from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from holdfast.cli.root import run
from holdfast.engine import install, schema
from holdfast.settings import Secret

LATEST = schema.packaged().latest
Captured = pytest.CaptureFixture[str]


def on(url: Secret, *arguments: str) -> int:
    return run(["--database-url", url.reveal(), *arguments])


def test_up_status_check(empty_url: Secret, capsys: Captured) -> None:
    assert on(empty_url, "migrate", "check") == 1
    assert "0001_schema.sql" in capsys.readouterr().out
    assert on(empty_url, "migrate") == 0
    assert capsys.readouterr().out.startswith(
        f"Schema at version {LATEST}: applied {LATEST}, functions renewed"
    )
    assert on(empty_url, "migrate", "up") == 0
    assert capsys.readouterr().out == f"Schema at version {LATEST}: nothing to do.\n"
    assert on(empty_url, "migrate", "check") == 0
    capsys.readouterr()
    assert on(empty_url, "migrate", "status", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "database": LATEST,
        "code": LATEST,
        "pending": [],
        "changed": [],
        "newer": [],
        "functions": "current",
        "skipped": [],
        "owner": "holdfast_owner",
        "missing_roles": [],
    }


def test_sql_needs_no_database(capsys: Captured) -> None:
    wrong = Secret("postgresql://127.0.0.1:1/x")
    assert on(wrong, "migrate", "sql") == 0
    assert capsys.readouterr().out == install.script()
    assert on(wrong, "migrate", "sql", "--from", "1", "--to", "1", "--bare") == 0
    assert "begin;" not in capsys.readouterr().out
    assert on(wrong, "migrate", "sql", "--from", "7000") == 2


@pytest.mark.parametrize(
    "command", [["migrate"], ["migrate", "status"], ["migrate", "check"], ["doctor", "--probe", "ready"]]
)
def test_away_is_exit_6_and_one_paragraph(command: list[str], capsys: Captured) -> None:
    assert on(Secret("postgresql://u:hidden@127.0.0.1:1/x"), *command) == 6
    captured = capsys.readouterr()
    assert captured.err.startswith("error: PostgreSQL at postgresql://u:•••@127.0.0.1:1/x cannot be reached")
    assert "Traceback" not in captured.err
    assert "hidden" not in captured.err


async def test_a_newer_schema_is_exit_4(conn: Any, url: Secret, capsys: Captured) -> None:
    await conn.execute("insert into holdfast.migrations values (9999, 'later', 'x', false, now(), '99.0')")
    code = await in_thread(url, "migrate")
    assert code == 4
    assert "pip install 'holdfast>=99.0'" in capsys.readouterr().err
    assert await in_thread(url, "migrate", "check", "--json") == 1
    assert json.loads(capsys.readouterr().out)["newer"] == ["9999_later"]


async def in_thread(url: Secret, *arguments: str) -> int:
    return await asyncio.to_thread(on, url, *arguments)


async def test_grants(conn: Any, url: Secret, capsys: Captured) -> None:
    name = f"hf_app_{conn.get_server_pid()}"
    await conn.execute(f"create role {name}")
    try:
        assert await in_thread(url, "migrate", "grants", "--role", name, "--print") == 0
        assert capsys.readouterr().out.startswith(f'grant holdfast_worker to "{name}"')
        assert not await conn.fetchval("select pg_has_role($1, 'holdfast_worker', 'member')", name)
        assert await in_thread(url, "migrate", "grants", "--role", name) == 0
        assert await conn.fetchval("select pg_has_role($1, 'holdfast_worker', 'member')", name)
        assert await in_thread(url, "migrate", "grants", "--role", "hf_nobody") == 3
    finally:
        await conn.execute(f"drop role {name}")
