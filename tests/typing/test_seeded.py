"""Tests that strict mypy and pyright find every deliberate mistake in `seeded.py`, and nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

SEEDED_FILE = Path(__file__).with_name("seeded.py")
ROOT = Path(__file__).resolve().parents[2]


def read_seeded_lines() -> set[int]:
    lines = SEEDED_FILE.read_text().splitlines()
    mistakes = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert len(mistakes) == 29
    return mistakes


def test_mypy_finds_every_mistake_and_no_other(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.11",
         "--cache-dir", str(tmp_path), SEEDED_FILE],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    reported = {int(line) for line in re.findall(r"seeded\.py:(\d+): error:", process.stdout)}
    assert reported == read_seeded_lines(), process.stdout + process.stderr


def test_pyright_finds_every_mistake_and_no_other() -> None:
    config = SEEDED_FILE.with_name("pyrightconfig.json")
    process = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "-p", config, "--pythonpath", sys.executable],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    report = json.loads(process.stdout)
    errors = [each for each in report["generalDiagnostics"] if each["severity"] == "error"]
    assert {each["range"]["start"]["line"] + 1 for each in errors} == read_seeded_lines(), process.stdout
