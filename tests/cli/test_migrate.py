from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from holdfast.cli.root import run_command_line
from holdfast.engine import install, schema
from holdfast.settings import Secret

LATEST_SCHEMA_VERSION = schema.load_packaged_schema().latest_version
Captured = pytest.CaptureFixture[str]


def run_on_database(url: Secret, *arguments: str) -> int:
    return run_command_line(["--database-url", url.reveal(), *arguments])


def test_up_status_and_check(empty_url: Secret, capsys: Captured) -> None:
    assert run_on_database(empty_url, "migrate", "check") == 1
    assert "0001_baseline" in capsys.readouterr().out
    assert run_on_database(empty_url, "migrate") == 0
    assert capsys.readouterr().out.startswith(
        f"The schema is at version {LATEST_SCHEMA_VERSION}: "
        f"{LATEST_SCHEMA_VERSION} migrations applied, functions updated"
    )
    assert run_on_database(empty_url, "migrate", "up") == 0
    assert capsys.readouterr().out == f"The schema is at version {LATEST_SCHEMA_VERSION}: nothing to do.\n"
    assert run_on_database(empty_url, "migrate", "check") == 0
    capsys.readouterr()
    assert run_on_database(empty_url, "migrate", "status", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "database": LATEST_SCHEMA_VERSION,
        "code": LATEST_SCHEMA_VERSION,
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
    assert run_on_database(wrong, "migrate", "sql") == 0
    assert capsys.readouterr().out == install.build_migration_script()
    assert run_on_database(wrong, "migrate", "sql", "--from", "1", "--to", "1", "--no-transaction") == 0
    assert "begin;" not in capsys.readouterr().out
    assert run_on_database(wrong, "migrate", "sql", "--from", "7000") == 2


@pytest.mark.parametrize(
    "command", [["migrate"], ["migrate", "status"], ["migrate", "check"], ["doctor", "--probe", "ready"]]
)
def test_unavailable_database_is_exit_code_6(command: list[str], capsys: Captured) -> None:
    assert run_on_database(Secret("postgresql://u:hidden@127.0.0.1:1/x"), *command) == 6
    captured = capsys.readouterr()
    assert captured.err.startswith("error: PostgreSQL at postgresql://u:•••@127.0.0.1:1/x cannot be reached")
    assert "Traceback" not in captured.err
    assert "hidden" not in captured.err


async def test_newer_schema_is_exit_code_4(conn: Any, url: Secret, capsys: Captured) -> None:
    await conn.execute("insert into holdfast.migrations values (9999, 'later', 'x', false, now(), '99.0')")
    code = await run_in_thread(url, "migrate")
    assert code == 4
    assert "pip install 'holdfast>=99.0'" in capsys.readouterr().err
    assert await run_in_thread(url, "migrate", "check", "--json") == 1
    assert json.loads(capsys.readouterr().out)["newer"] == ["9999_later"]


async def run_in_thread(url: Secret, *arguments: str) -> int:
    return await asyncio.to_thread(run_on_database, url, *arguments)


async def test_grants_are_printed_and_applied(conn: Any, url: Secret, capsys: Captured) -> None:
    name = f"hf_app_{conn.get_server_pid()}"
    await conn.execute(f"create role {name}")
    try:
        assert await run_in_thread(url, "migrate", "grants", "--role", name, "--print") == 0
        assert capsys.readouterr().out.startswith(f'grant holdfast_worker to "{name}"')
        assert not await conn.fetchval("select pg_has_role($1, 'holdfast_worker', 'member')", name)
        assert await run_in_thread(url, "migrate", "grants", "--role", name) == 0
        assert await conn.fetchval("select pg_has_role($1, 'holdfast_worker', 'member')", name)
        assert await run_in_thread(url, "migrate", "grants", "--role", "hf_nobody") == 3
        # Printing changes nothing, so the role may be created later.
        assert await run_in_thread(url, "migrate", "grants", "--role", "hf_nobody", "--print") == 0
    finally:
        await conn.execute(f"drop role {name}")
