"""Tests of the pages about other systems: our code runs, and code of other systems is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from doc_files import read_titled_blocks

from holdfast.settings import Secret

PAGES = sorted((Path(__file__).resolve().parents[2] / "docs" / "coming-from").glob("*.md"))
BLOCKS = [
    (page.stem, *title.partition(": ")[::2], code)
    for page in PAGES
    for title, code in read_titled_blocks(page)
]
OUR_BLOCKS = [(name, code) for _, system, name, code in BLOCKS if system == "Holdfast"]
OTHER_BLOCKS = [
    (f"{system}-{name}", code) for _, system, name, code in BLOCKS if name and system != "Holdfast"
]
# What the blocks of other systems need, in the versions they were written for.
OTHER_PACKAGES = (
    "celery[redis]==5.*", "rq==2.*", "dramatiq[redis]==2.*", "procrastinate==3.*", "pgqueuer[asyncpg]==1.*",
    "pgmq==1.*", "psycopg[binary]==3.*", "temporalio==1.*",
)  # fmt: skip

# Written beside the code of the pages. A `submit` may wait for a result, so the test drains meanwhile.
TEST_OF_OUR_CODE = """
import asyncio, importlib, inspect
from datetime import timedelta
from pathlib import Path

import pytest

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("test_"))


@pytest.mark.parametrize("name", NAMES)
async def test_code_of_the_page_runs(hf, name):
    module = importlib.import_module(name)
    hf.use(importlib.import_module("tasks") if name == "use" else module)
    submit = getattr(module, "submit", None)
    if submit is None:
        return
    call = submit() if inspect.iscoroutinefunction(submit) else asyncio.to_thread(submit)
    submitting = asyncio.create_task(call)
    attempts, failed = [], []
    while not submitting.done():
        await asyncio.wait([submitting], timeout=0.1)
        result = await hf.drain(until=timedelta(minutes=10))
        attempts += [*result.attempts, *result.messages]
        failed += result.failed
    await submitting
    assert attempts
    assert not failed
"""


def test_every_page_shows_our_code() -> None:
    assert {page for page, system, _, _ in BLOCKS if system == "Holdfast"} == {
        page.stem for page in PAGES if page.stem != "index"
    }


@pytest.fixture
def our_modules(tmp_path: Path) -> list[str]:
    for name, code in OUR_BLOCKS:
        assert not (tmp_path / name).exists(), f"{name} is on two pages"
        (tmp_path / name).write_text(code)
    return [Path(name).stem for name, _ in OUR_BLOCKS]


def test_our_code_is_imported(our_modules: list[str], tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", f"import {', '.join(our_modules)}"], cwd=tmp_path, check=True)


@pytest.mark.timeout(400)  # a database for each page
@pytest.mark.usefixtures("our_modules")
def test_code_of_the_pages_about_other_systems_runs(url: Secret, tmp_path: Path) -> None:
    (tmp_path / "test_pages.py").write_text(TEST_OF_OUR_CODE)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--holdfast-url={url.reveal()}"],
        cwd=tmp_path, env={**os.environ, "HOLDFAST_HOME": str(tmp_path / "home")},
        capture_output=True, text=True, check=False, timeout=350,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(OUR_BLOCKS)} passed" in done.stdout


@pytest.mark.parametrize(("name", "code"), OTHER_BLOCKS, ids=[name for name, _ in OTHER_BLOCKS])
def test_code_of_other_systems_compiles(name: str, code: str) -> None:
    compile(code, name, "exec")


@pytest.mark.timeout(600)  # downloads the other systems
def test_code_of_other_systems_is_imported_with_the_real_packages(tmp_path: Path) -> None:
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", str(tmp_path / "venv")], check=True, timeout=60)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run(
        [*uv, "pip", "install", "-q", "--python", str(python), *OTHER_PACKAGES], check=True, timeout=400
    )
    for title, code in OTHER_BLOCKS:
        system, _, name = title.partition("-")
        folder = tmp_path / system
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(code)
        done = subprocess.run(
            [str(python), "-c", f"import {Path(name).stem}"], cwd=folder,
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, f"{title}: {done.stderr}"
