from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from holdfast.cli import doctor
from holdfast.cli.root import run
from holdfast.engine import checks
from holdfast.engine.checks import Finding
from holdfast.settings import Secret

Captured = pytest.CaptureFixture[str]


async def on(url: Secret, *arguments: str) -> int:
    return await asyncio.to_thread(run, ["--database-url", url.reveal(), *arguments])


async def test_one_line_a_check_and_a_fix_for_each_problem(empty_url: Secret, capsys: Captured) -> None:
    assert await on(empty_url, "doctor") == 1
    lines = capsys.readouterr().out.splitlines()
    schema = next(number for number, line in enumerate(lines) if line.split()[1] == "schema")
    assert lines[schema].split() == ["fail", "schema", "not", "installed"]
    assert lines[schema + 1].strip() == "fix: Run: holdfast migrate"


async def test_json(url: Secret, capsys: Captured) -> None:
    await on(url, "doctor", "--json")
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"check", "level", "text", "fix"} == set(found[0])
    assert {finding["level"] for finding in found} <= {"ok", "warn", "fail"}


@pytest.mark.parametrize(("level", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
async def test_exit_code(level: Any, code: int, url: Secret, monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(*_: object) -> list[Finding]:
        return [Finding("storage", level, "so it is", "do this")]

    monkeypatch.setattr(checks, "examine", found)
    assert await on(url, "doctor") == code


async def test_away(capsys: Captured) -> None:
    assert await on(Secret("postgresql://127.0.0.1:1/x"), "doctor") == 6
    out = capsys.readouterr().out
    assert out.startswith("fail  database")
    assert "storage" in out


async def test_probes_are_silent_when_all_is_well(url: Secret, empty_url: Secret, capsys: Captured) -> None:
    assert await on(url, "doctor", "--probe", "live") == 0
    assert await on(url, "doctor", "--probe", "ready") == 0
    assert await on(Secret("postgresql://127.0.0.1:1/x"), "doctor", "--probe", "live") == 0
    assert capsys.readouterr() == ("", "")
    assert await on(empty_url, "doctor", "--probe", "ready") == 4
    assert "holdfast migrate" in capsys.readouterr().err


async def test_a_probe_starts_no_server(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    assert await asyncio.to_thread(run, ["--home", str(tmp_path / "home"), "doctor", "--probe", "ready"]) == 6
    assert not (tmp_path / "home").exists()
    assert doctor.doctor.help
