"""`make test` and `make demo` say what they install: scripts/setup.sh with an installer that does nothing."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Stands for python3 and for the programs of the virtual environment that it creates.
PROGRAM = """#!/bin/sh
if [ "$1 $2" = "-m venv" ]; then
  mkdir -p "$3/bin"
  for name in python uv holdfast; do cp "$0" "$3/bin/$name"; done
fi
"""


def test_each_step_of_the_installation_is_announced(tmp_path: Path) -> None:
    for folder in ("scripts", "requirements"):
        (tmp_path / folder).mkdir()
    for name in ("scripts/setup.sh", "requirements/run.txt", "requirements/uv.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / "python3"
    python.write_text(PROGRAM)
    python.chmod(python.stat().st_mode | stat.S_IEXEC)

    def run_setup() -> str:
        command = [str(tmp_path / "scripts" / "setup.sh"), "run"]
        environ = {"PATH": "/usr/bin:/bin", "PYTHON": str(python)}
        return subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stderr

    lines = run_setup().splitlines()
    count = len(
        re.findall(
            r"^[a-zA-Z0-9._-]+(?:\[.*\])?==", (ROOT / "requirements/run.txt").read_text(), re.MULTILINE
        )
    )
    assert lines == [
        "setup: creating .venv",
        "setup: installing uv (the installer)",
        f'setup: installing {count} locked packages of "run" into .venv',
        "setup: done",
    ]
    assert run_setup() == ""  # the second time there is nothing to do
