"""Each template of `holdfast init`, from an empty folder: its tests pass, its image has what it needs."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from shell import Captured

from holdfast.cli.root import run_command_line
from holdfast.devtools.init import APP_FILES_BY_TEMPLATE

TEMPLATES = sorted(APP_FILES_BY_TEMPLATE)


def create_project(folder: Path, template: str) -> Path:
    assert run_command_line(["init", str(folder), "--template", template]) == 0
    return folder


@pytest.mark.timeout(300)
@pytest.mark.parametrize("template", TEMPLATES)
def test_the_tests_of_a_template_pass(template: str, tmp_path: Path) -> None:
    project = create_project(tmp_path / "project", template)
    environ = {
        name: value for name, value in os.environ.items() if "HOLDFAST" not in name and name != "DATABASE_URL"
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error::RuntimeWarning"],
        cwd=project, env={**environ, "HOLDFAST_HOME": str(tmp_path / "home")}, capture_output=True, text=True,
        timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) >= 2


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_has_an_image_with_its_requirements(
    template: str, tmp_path: Path, capsys: Captured
) -> None:
    project = create_project(tmp_path / "project", template)
    dockerfile = (project / "Dockerfile").read_text()
    assert "{" not in dockerfile.replace('CMD ["', "")
    for source in re.findall(r"^COPY (\S+) \.$", dockerfile, re.MULTILINE):
        assert (project / source).exists()
    command = json.loads(dockerfile.rpartition("CMD ")[2])
    assert command[:2] == ["holdfast", "worker"]
    assert (project / command[2]).exists()
    requirements = (project / "requirements.txt").read_text().split()
    assert requirements[0].startswith("holdfast")
    assert {".venv", ".holdfast"} <= set((project / ".dockerignore").read_text().split())
    readme = (project / "README.md").read_text()
    [install] = re.findall(r"pip install (.*?)(?: && pytest.*|`.*)?$", readme, re.MULTILINE)
    for package in shlex.split(install.partition("#")[0]):
        assert package.startswith("holdfast[") or package in (*requirements, "httpx"), package
