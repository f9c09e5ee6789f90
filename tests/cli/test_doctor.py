from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from holdfast.cli import doctor
from holdfast.cli.root import run_command_line
from holdfast.engine import doctor as engine_doctor
from holdfast.engine.doctor import DoctorFinding
from holdfast.settings import Secret

Captured = pytest.CaptureFixture[str]


async def run_on_database(url: Secret, *arguments: str) -> int:
    return await asyncio.to_thread(run_command_line, ["--database-url", url.reveal(), *arguments])


async def test_each_check_is_one_line_and_each_problem_has_a_fix(empty_url: Secret, capsys: Captured) -> None:
    assert await run_on_database(empty_url, "doctor") == 1
    lines = capsys.readouterr().out.splitlines()
    schema = next(number for number, line in enumerate(lines) if line.split()[1] == "schema")
    assert lines[schema].split() == ["fail", "schema", "the", "schema", "is", "not", "installed"]
    assert lines[schema + 1].strip() == "fix: Run: holdfast migrate"


async def test_json_has_one_object_per_check(url: Secret, capsys: Captured) -> None:
    await run_on_database(url, "doctor", "--json")
    findings = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"check", "level", "text", "fix"} == set(findings[0])
    assert {finding["level"] for finding in findings} <= {"ok", "warn", "fail"}


@pytest.mark.parametrize(("level", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
async def test_exit_code_depends_on_the_worst_finding(
    level: Any, code: int, url: Secret, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def findings(*_: object) -> list[DoctorFinding]:
        return [DoctorFinding("storage", level, "so it is", "do this")]

    monkeypatch.setattr(engine_doctor, "run_doctor_checks", findings)
    assert await run_on_database(url, "doctor") == code


async def test_unavailable_database_is_exit_code_6(capsys: Captured) -> None:
    assert await run_on_database(Secret("postgresql://127.0.0.1:1/x"), "doctor") == 6
    out = capsys.readouterr().out
    assert out.startswith("fail  database")
    assert "storage" in out


async def test_successful_probe_prints_nothing(url: Secret, empty_url: Secret, capsys: Captured) -> None:
    assert await run_on_database(url, "doctor", "--probe", "live") == 0
    assert await run_on_database(url, "doctor", "--probe", "ready") == 0
    assert await run_on_database(Secret("postgresql://127.0.0.1:1/x"), "doctor", "--probe", "live") == 0
    assert capsys.readouterr() == ("", "")
    assert await run_on_database(empty_url, "doctor", "--probe", "ready") == 4
    assert "holdfast migrate" in capsys.readouterr().err


async def test_probe_starts_no_server(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    assert (
        await asyncio.to_thread(
            run_command_line, ["--home", str(tmp_path / "home"), "doctor", "--probe", "ready"]
        )
        == 6
    )
    assert not (tmp_path / "home").exists()
    assert doctor.doctor_command.help


async def test_the_sandbox_of_chromium_and_a_wrong_path_are_reported(
    url: Secret, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run_on_database(url, "doctor")
    assert "chromium" not in capsys.readouterr().out
    monkeypatch.setenv("HOLDFAST_CHROMIUM_SANDBOX", "off")
    monkeypatch.setenv("HOLDFAST_CHROMIUM", "/nonexistent/chromium")
    assert await run_on_database(url, "doctor") == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if "chromium" in line.lower()]
    assert lines[0].startswith("fail  chromium")
    assert any(line.startswith("warn  chromium") and "without its sandbox" in line for line in lines)
