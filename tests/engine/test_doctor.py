"""Every check of `holdfast doctor`, with and without a problem."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Generator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.engine import doctor, embedded, install, schema
from holdfast.engine.connection import open_connection
from holdfast.engine.doctor import DoctorFinding
from holdfast.engine.schema import FunctionFile, SchemaFiles
from holdfast.settings import Secret, Settings, load_settings

DoctorRunner = Callable[[], Awaitable[dict[str, DoctorFinding]]]


@pytest.fixture
def examine(url: Secret, settings: Settings) -> DoctorRunner:
    async def ask() -> dict[str, DoctorFinding]:
        return {finding.check: finding for finding in await doctor.run_doctor_checks(url, settings)}

    return ask


async def set_server_setting(connection: Any, setting: str) -> None:
    name = await connection.fetchval("select quote_ident(current_database())")
    await connection.execute(f"alter database {name} set {setting}")


async def test_no_problems(examine: DoctorRunner) -> None:
    findings = await examine()
    assert list(findings) == [
        "database",
        "version",
        "pooler",
        "durability",
        "standby",
        "clock",
        "schema",
        "roles",
        "extensions",
        "snapshots",
        "autovacuum",
        "connections",
        "maintenance",
        "queues",
        "workers",
        "alerts",
        "storage",
    ]
    # The server of the tests runs without fsync for speed, and that is what doctor must not let pass.
    assert {name for name, finding in findings.items() if finding.level == "fail"} <= {"durability"}
    assert findings["version"].text.startswith("PostgreSQL ")
    assert f"version {schema.load_packaged_schema().latest_version} of" in findings["schema"].text


@pytest.fixture(scope="module")
def safe_home() -> Generator[Path]:
    home = Path(tempfile.mkdtemp(prefix="holdfast-doctor-"))
    home.chmod(0o755)
    yield home
    embedded.stop_server(load_settings({"home": str(home)}))
    shutil.rmtree(home, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "level", "words"),
    [
        ({}, "ok", "fsync on"),
        ({"fsync": "off"}, "fail", "fsync off"),
        ({"full_page_writes": "off"}, "fail", "full_page_writes off"),
        ({"fsync": "off", "full_page_writes": "off"}, "fail", "fsync and full_page_writes off"),
        ({"synchronous_commit": "off"}, "warn", "synchronous_commit is off"),
    ],
)
async def test_durability(options: dict[str, str], level: str, words: str, safe_home: Path) -> None:
    settings = load_settings({"home": str(safe_home)}, environ={})
    embedded.stop_server(settings)
    with embedded.start_server(settings, options=options) as server:
        findings = {
            finding.check: finding for finding in await doctor.run_doctor_checks(server.url, settings)
        }
    assert (findings["durability"].level, words in findings["durability"].text) == (level, True), findings[
        "durability"
    ]
    assert bool(findings["durability"].fix) is (level != "ok")
    assert findings["schema"] == DoctorFinding(
        "schema", "fail", "the schema is not installed", "Run: holdfast migrate"
    )


@pytest.mark.slow
async def test_autovacuum_and_connections(safe_home: Path) -> None:
    settings = load_settings({"home": str(safe_home)}, environ={})
    embedded.stop_server(settings)
    ill = {"autovacuum": "off", "max_connections": "10"}
    with embedded.start_server(settings, options=ill) as server:
        findings = {
            finding.check: finding for finding in await doctor.run_doctor_checks(server.url, settings)
        }
    assert findings["autovacuum"].level == "fail"
    assert findings["connections"].level == "warn"
    assert "one process of Holdfast opens up to 9" in findings["connections"].text


async def test_read_only(conn: Any, examine: DoctorRunner) -> None:
    await set_server_setting(conn, "default_transaction_read_only = on")
    finding = (await examine())["version"]
    assert (finding.level, "read-only" in finding.text) == ("fail", True)


async def test_schema_outdated_changed_and_newer(conn: Any, examine: DoctorRunner) -> None:
    await conn.execute("update holdfast.function_set set checksum = 'old', applied_by = '0.0.1'")
    assert ((await examine())["schema"].level, (await examine())["schema"].fix) == (
        "fail",
        "Run: holdfast migrate",
    )
    await conn.execute("update holdfast.function_set set applied_by = '99'")
    assert (await examine())["schema"].level == "warn"
    await conn.execute("insert into holdfast.migrations values (9999, 'later', 'x', false, now(), '99')")
    assert (await examine())["schema"].level == "warn"
    await conn.execute("update holdfast.migrations set breaking = true where version = 9999")
    assert "breaking" in (await examine())["schema"].text
    await conn.execute("delete from holdfast.migrations where version = 9999")
    await conn.execute("update holdfast.migrations set checksum = 'x' where version = 1")
    assert "0001_baseline" in (await examine())["schema"].text


async def test_an_open_transaction_is_named(
    conn: Any, second: Any, examine: DoctorRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await examine())["snapshots"].level == "ok"
    monkeypatch.setattr(doctor, "OLD_SNAPSHOT_AGE", timedelta(0))
    async with conn.transaction(isolation="repeatable_read"):
        await conn.execute("select 1")
        finding = (await examine())["snapshots"]
        assert finding.level == "warn"
        assert str(conn.get_server_pid()) in finding.text
        assert "pg_terminate_backend" in (finding.fix or "")


async def test_clock(examine: DoctorRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    class FastClock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(hours=1)

    assert (await examine())["clock"].level == "ok"
    monkeypatch.setattr(doctor, "datetime", FastClock)
    finding = (await examine())["clock"]
    assert finding.level == "warn"
    assert "differs from this machine by 36" in finding.text.replace("3599.", "36")


async def test_an_extension_of_somebody_else(empty_url: Secret, settings: Settings) -> None:
    """A schema pgmq that was there before us is left alone; our owner may use it."""
    async with open_connection(empty_url, settings) as connection:
        await connection.execute("create schema pgmq; create table pgmq.meta ()")
    few = tuple(
        f
        for f in schema.load_packaged_schema().functions
        if f.path in {"access/grants.sql", "foundation/clock.sql"}
    )
    marked = FunctionFile("queue.sql", "create function pgmq.ours() returns int return 1;", "pgmq")
    files = SchemaFiles(schema.load_packaged_schema().migrations[:1], (*few, marked))
    await install.migrate_database(empty_url, settings, files=files)
    findings = {
        finding.check: finding for finding in await doctor.run_doctor_checks(empty_url, settings, files=files)
    }
    assert findings["extensions"].text == "pgmq provides the message queues, not Holdfast"
    assert findings["schema"].level == "ok"
    async with open_connection(empty_url, settings) as connection:
        assert await connection.fetchval("select count(*) from pg_proc where proname = 'ours'") == 0
        assert await connection.fetchval(
            "select has_table_privilege('holdfast_owner', 'pgmq.meta', 'insert')"
        )


async def test_storage(settings: Settings, tmp_path: Path) -> None:
    assert doctor.check_storage_folder(replace(settings, home=tmp_path / "not" / "yet")).level == "ok"
    assert not (tmp_path / "not").exists()
    blocked = tmp_path / "file"
    blocked.touch()
    finding = doctor.check_storage_folder(replace(settings, home=blocked))
    assert (finding.level, "HOLDFAST_HOME" in (finding.fix or "")) == ("fail", True)


async def test_unreachable_database(settings: Settings) -> None:
    findings = await doctor.run_doctor_checks(Secret("postgresql://u:hidden@127.0.0.1:1/x"), settings)
    assert [(f.check, f.level, f.unreachable) for f in findings] == [
        ("database", "fail", True),
        ("storage", "ok", False),
    ]
    assert "hidden" not in json.dumps([f.text for f in findings])


async def test_a_role_without_rights_gets_a_finding(conn: Any, url: Secret, settings: Settings) -> None:
    name = f"hf_low_{conn.get_server_pid()}"
    await conn.execute(f"create role {name} login password 'word'")
    try:
        low = Secret(url.reveal().replace(url.reveal().split("//")[1].split("@")[0], f"{name}:word"))
        findings = {finding.check: finding for finding in await doctor.run_doctor_checks(low, settings)}
    finally:
        await conn.execute(f"drop role {name}")
    assert (findings["schema"].level, findings["roles"].level) == ("fail", "fail")
    for check in ("schema", "roles"):
        assert f"holdfast migrate grants --role {name}" in (findings[check].fix or "")


async def test_queues_without_workers_lost_workers_and_alerts(examine: DoctorRunner, url: Secret) -> None:
    async with open_connection(url, load_settings()) as connection:
        await connection.execute("""select holdfast.submit('{"type": "send", "queue": "mail"}')""")
        await connection.execute("select * from holdfast.claim_tasks('w1', 1, null, '{other}')")
        await connection.execute("select holdfast.mark_worker_lost('w1')")
        findings = await examine()
        assert findings["queues"].level == "warn"
        assert "no live worker serves mail (1 task, the oldest for" in findings["queues"].text
        assert findings["workers"].text.startswith("lost: w1 (last seen")
        assert findings["alerts"].level == "ok"
        await connection.execute("select holdfast.evaluate_alerts(0)")
        finding = (await examine())["alerts"]
        assert (finding.level, finding.text) == ("warn", "firing: warning lost-workers: workers")
        await connection.execute("update holdfast.alert_rules set last_error = 'x' where name = 'storage'")
        await connection.execute("select holdfast.set_alert_rule_enabled('lost-workers', false)")
        assert "storage" in (await examine())["alerts"].text
