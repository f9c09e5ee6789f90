"""The wheel of the checkout, and empty virtual environments with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
UV_PROGRAM = Path(sys.executable).with_name("uv")


def build_wheel(folder: Path, source: Path = ROOT) -> Path:
    """Build the wheel of a source tree in a folder and return its path."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", str(folder), str(source)], check=True, capture_output=True, text=True)
    return next(folder.glob("*.whl"))


def create_environment(wheel: Path, extras: str, folder: Path) -> Path:
    """Install the wheel with some extras into an empty virtual environment and return its folder."""
    environment = folder / "venv"
    subprocess.run([UV_PROGRAM, "venv", "-q", "--python", sys.executable, environment], check=True)
    requirement = f"holdfast[{extras}] @ {wheel.as_uri()}" if extras else f"holdfast @ {wheel.as_uri()}"
    subprocess.run(
        [UV_PROGRAM, "pip", "install", "-q", "--python", environment / "bin" / "python",
         "--constraint", ROOT / "requirements" / "dev.txt", requirement],
        check=True, env={**os.environ, "UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", "")},
    )  # fmt: skip
    return environment
