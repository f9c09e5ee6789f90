"""The pytest plug-in in the project of a user, with its own configuration and in a process of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)  # a run starts a server and runs tests, also on a slow machine
SAMPLE = Path(__file__).with_name("sample")
CONFIG = """
[pytest]
holdfast_app = shop
asyncio_default_fixture_loop_scope = function
addopts = -p no:cacheprovider
filterwarnings =
    error
    ignore::pytest.PytestUnraisableExceptionWarning
"""


@pytest.fixture
def temporary() -> Generator[Path]:
    """A temporary folder for the plug-in's server, readable by the account that the server runs under."""
    folder = Path(tempfile.mkdtemp(prefix="hf-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    shutil.copytree(SAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "pytest.ini").write_text(CONFIG)
    return folder


def run_pytest(project: Path, temporary: Path, *arguments: str) -> tuple[int, str]:
    """Run pytest without the environment of this run; the plug-in must not use DATABASE_URL."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST", "PYTEST"))}
    environment |= {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "TMPDIR": str(temporary)}
    if "HOLDFAST_PG_BIN" in os.environ:
        environment["HOLDFAST_PG_BIN"] = os.environ["HOLDFAST_PG_BIN"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments], cwd=project, env=environment,
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_sample_project_passes_and_fails_as_expected_and_leaves_nothing_behind(
    project: Path, temporary: Path
) -> None:
    code, text = run_pytest(project, temporary, "test_right.py", "test_wrong.py", "-n", "2")
    assert code == 1, text
    assert "5 failed, 9 passed" in text, text
    for message in (
        "Killed after the await in charge_carelessly:",
        "the snapshot differs",
        "the submitted work differs",
        "send(to='bob') was not submitted. Submitted calls of this task:",
        "send(to='ann', text='thanks')",
        "was not submitted 2 times, but 1 times",
        "More than 20 attempts ran, the last of again.",
    ):
        assert message in text, text
    failed = {line.split("::")[1].split()[0] for line in text.splitlines() if line.startswith("FAILED")}
    assert failed == set(re.findall(r"def (test_\w+)", (project / "test_wrong.py").read_text()))
    assert [path.name for path in temporary.glob("holdfast-*")] == []


def test_run_without_the_fixture_starts_no_server(project: Path, temporary: Path) -> None:
    (project / "conftest.py").unlink()
    (project / "test_else.py").write_text("def test_one(): assert True\n")
    code, text = run_pytest(project, temporary, "test_else.py")
    assert code == 0, text
    assert [path.name for path in temporary.glob("holdfast-*")] == []


def test_asynchronous_test_in_strict_mode_names_the_missing_setting(project: Path, temporary: Path) -> None:
    (project / "conftest.py").unlink()
    (project / "test_unmarked.py").write_text("async def test_one(hf): assert hf.submitted() == []\n")
    code, text = run_pytest(project, temporary, "test_unmarked.py")
    assert code == 1, text
    assert 'asyncio_mode = "auto"' in text
    assert "need to install" not in text
    assert [path.name for path in temporary.glob("holdfast-*")] == [], "no server was needed"


def test_asynchronous_test_runs_in_auto_mode(project: Path, temporary: Path) -> None:
    (project / "conftest.py").unlink()
    (project / "test_unmarked.py").write_text("async def test_one(hf): assert hf.submitted() == []\n")
    code, text = run_pytest(project, temporary, "test_unmarked.py", "-o", "asyncio_mode=auto")
    assert code == 0, text


def test_application_of_a_module_uses_the_database_of_each_test(project: Path, temporary: Path) -> None:
    (project / "conftest.py").unlink()  # its fixture would give every test a database
    code, text = run_pytest(project, temporary, "test_web.py")
    assert code == 0, text
    assert "5 passed" in text
    assert not (project / ".holdfast").exists(), "nothing was stored in the folder of the project"
