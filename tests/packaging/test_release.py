"""The release: built and checked as `make release` does, and by the steps of the workflow."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deploy_files import ROOT, TOOLS, load_yaml, run_tool

from holdfast.version import __version__

sys.path.insert(0, str(ROOT / "scripts"))
import release

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_fits_its_schema(path: Path) -> None:
    checked = run_tool(TOOLS / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", path)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_steps_of_workflows_use_programs_of_the_repository(path: Path) -> None:
    for job in load_yaml(path)["jobs"].values():
        for step in job["steps"]:
            # Values of the event reach a shell through the environment, so that a tag cannot be a command.
            assert "${{" not in step.get("run", ""), step
            for script in re.findall(r"(?:^|\s)(scripts/\S+)", step.get("run", "")):
                assert os.access(ROOT / script, os.X_OK)
            for target in re.findall(r"make (\S+)", step.get("run", "")):
                assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_release_is_refused_without_an_entry_in_the_changelog() -> None:
    release.check_changelog("0.1.0rc1")
    release.check_changelog("0.1.0.dev0")  # only a warning
    with pytest.raises(release.ReleaseError, match=r"no section 9\.9\.9"):
        release.check_changelog("9.9.9")


@pytest.mark.timeout(1200)
def test_steps_of_the_build_job_work_here(tmp_path: Path) -> None:
    """Runs the commands of the release workflow in a copy of the repository."""
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "-q", ROOT, checkout], check=True)
    (checkout / ".venv").symlink_to(ROOT / ".venv")
    (checkout / "scripts" / "setup.sh").write_text("#!/bin/sh\n")  # the environment is there already
    job: dict[str, Any] = load_yaml(ROOT / ".github" / "workflows" / "release.yaml")["jobs"]["build"]
    commands = [step["run"] for step in job["steps"] if "run" in step]
    for command in commands:
        step = subprocess.run(
            ["bash", "-e", "-c", command], cwd=checkout, env={**os.environ, "TAG": f"v{__version__}"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert step.returncode == 0, step.stdout + step.stderr
    files = {path.name for path in (checkout / "dist").iterdir()}
    wheel = f"holdfast-{__version__}-py3-none-any.whl"
    expected = {wheel, f"holdfast-{__version__}.tar.gz", f"holdfast-{__version__}.cdx.json", "SHA256SUMS"}
    assert files == {*expected, f"holdfast-{__version__}-docs.tar.gz"}
    digest = hashlib.sha256((checkout / "dist" / wheel).read_bytes()).hexdigest()
    assert f"{digest}  {wheel}\n" in (checkout / "dist" / "SHA256SUMS").read_text()
    bill = json.loads((checkout / "dist" / f"holdfast-{__version__}.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
