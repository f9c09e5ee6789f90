"""Tests that the application of the tutorial works as printed, chapter by chapter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from doc_files import write_doc_files

from holdfast.settings import Secret

TUTORIAL_DIR = Path(__file__).resolve().parents[2] / "docs" / "tutorial"
CHAPTERS = sorted(TUTORIAL_DIR.glob("[0-9]*.md"))


def run_python(folder: Path, *arguments: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env={**os.environ, **variables},
        capture_output=True, text=True, check=False, timeout=350,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_first_chapter_prints_what_the_page_says(url: Secret, tmp_path: Path) -> None:
    write_doc_files(CHAPTERS[0], tmp_path)
    address = {"DATABASE_URL": url.reveal(), "HOLDFAST_HOME": str(tmp_path / "home")}
    worker = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "worker", "tasks.py"], cwd=tmp_path, env={**os.environ, **address}
    )
    try:
        assert run_python(tmp_path, "submit.py", **address) == "Welcome, ann@example.com!\n"
    finally:
        worker.terminate()
        worker.wait(40)
    assert "```text\nWelcome, ann@example.com!\n```" in CHAPTERS[0].read_text(encoding="utf-8")


@pytest.mark.timeout(400)  # starts six processes one after the other
def test_application_passes_the_tests_of_the_last_chapter(url: Secret, tmp_path: Path) -> None:
    for chapter in CHAPTERS:
        write_doc_files(chapter, tmp_path)
        if (tmp_path / "web.py").exists():
            run_python(tmp_path, "-c", "import web")
    database = f"--holdfast-url={url.reveal()}"  # the server of this run, instead of one more
    output = run_python(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", database)
    assert "5 passed" in output
