"""The pytest plug-in from outside: a user's project, with its own configuration, in a process of its own."""

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

pytestmark = pytest.mark.timeout(300)  # a server is started and tests are run, on whatever machine this is
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
    """Where the plug-in may put its server; open to the account that the server runs under."""
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


def run(project: Path, temporary: Path, *arguments: str) -> tuple[int, str]:
    """Without our environment: DATABASE_URL must not matter."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST", "PYTEST"))}
    environment |= {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "TMPDIR": str(temporary)}
    if "HOLDFAST_PG_BIN" in os.environ:
        environment["HOLDFAST_PG_BIN"] = os.environ["HOLDFAST_PG_BIN"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments], cwd=project, env=environment,
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_a_user_s_tests_pass_or_say_what_is_wrong_and_leave_nothing(project: Path, temporary: Path) -> None:
    code, text = run(project, temporary, "test_right.py", "test_wrong.py", "-n", "2")
    assert code == 1, text
    assert "5 failed, 9 passed" in text, text
    for said in (
        "Killed after the await in charge_carelessly:",
        "the snapshot differs",
        "the submitted work differs",
        "send(to='bob') was not submitted. Of that task there is:",
        "send(to='ann', text='thanks')",
        "was not submitted 2 times, but 1 times",
        "More than 20 attempts ran, the last of again.",
    ):
        assert said in text, text
    failed = {line.split("::")[1].split()[0] for line in text.splitlines() if line.startswith("FAILED")}
    assert failed == set(re.findall(r"def (test_\w+)", (project / "test_wrong.py").read_text()))
    assert [path.name for path in temporary.glob("holdfast-*")] == []


def test_a_run_that_never_asks_for_it_starts_nothing(project: Path, temporary: Path) -> None:
    (project / "conftest.py").unlink()
    (project / "test_else.py").write_text("def test_one(): assert True\n")
    code, text = run(project, temporary, "test_else.py")
    assert code == 0, text
    assert [path.name for path in temporary.glob("holdfast-*")] == []
