"""The example application `photo_club` with nothing but the wheel: its own tests pass."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from wheel_environments import ROOT, UV_PROGRAM, build_wheel, create_environment


@pytest.mark.timeout(600)
def test_the_photo_club_needs_only_the_wheel(tmp_path: Path) -> None:
    environment = create_environment(build_wheel(tmp_path / "dist"), "dev,testing", tmp_path)
    subprocess.run(
        [UV_PROGRAM, "pip", "install", "-q", "--python", environment / "bin" / "python",
         "--constraint", ROOT / "requirements" / "dev.txt", "fastapi", "httpx"], check=True,
    )  # fmt: skip
    folder = tmp_path / "apps"
    shutil.copytree(ROOT / "examples" / "photo_club", folder / "photo_club")
    done = subprocess.run(
        [environment / "bin" / "pytest", "-q", "photo_club"],
        cwd=folder, capture_output=True, text=True, check=False,
        env={"PATH": os.defpath, "HOME": str(tmp_path), "HOLDFAST_PUBLIC_URL": "/tasks"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout
