"""pyright and mypy, both strict, on a file of seeded mistakes: all of them found, nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).with_name("seeded.py")
ROOT = Path(__file__).resolve().parents[2]


def seeded() -> set[int]:
    lines = FILE.read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert len(wrong) == 29
    return wrong


def test_mypy_finds_every_mistake_and_no_other(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.11",
         "--cache-dir", str(tmp_path), FILE],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    reported = {int(line) for line in re.findall(r"seeded\.py:(\d+): error:", done.stdout)}
    assert reported == seeded(), done.stdout + done.stderr


def test_pyright_finds_every_mistake_and_no_other() -> None:
    config = FILE.with_name("pyrightconfig.json")
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "-p", config, "--pythonpath", sys.executable],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    report = json.loads(done.stdout)
    errors = [each for each in report["generalDiagnostics"] if each["severity"] == "error"]
    assert {each["range"]["start"]["line"] + 1 for each in errors} == seeded(), done.stdout
