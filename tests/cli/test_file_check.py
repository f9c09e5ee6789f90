"""`holdfast file check`: files without content, content without files, and their repair."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import file_saving_task
import pytest
from shell import Captured, Shell

from holdfast import Client
from holdfast.engine.embedded import binaries
from holdfast.settings import Secret, Settings

TWO_DAYS_S = 2 * 86_400


@pytest.fixture
def shell(url: Secret, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("HOLDFAST_STORAGE_URL", str(tmp_path / "store"))
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Shell(url, capsys)


async def submit_note(url: Secret, text: str) -> None:
    async with Client(url.reveal()) as client:
        await client.submit(file_saving_task.save_note(text))


def run_program(*command: str | Path, **variables: str) -> None:
    process = subprocess.run(
        [str(word) for word in command], env={**os.environ, **variables},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr


def run_worker(url: Secret) -> None:
    """Run what is ready in a process of its own, because the command changes its environment."""
    command = [sys.executable, "-m", "holdfast", "worker", file_saving_task.__file__, "--drain"]
    run_program(*command, DATABASE_URL=url.reveal())


def put_file(shell: Shell, folder: Path, name: str, text: str) -> tuple[str, Path]:
    """Store a file; return its id and the path of its content in the store."""
    (folder / name).write_text(text)
    file_id = shell("file", "put", name, "--owner", "ann").strip()
    [file] = [row for row in shell.json("file", "list") if row["id"] == file_id]
    return file_id, folder / "store" / file["key"]


def test_healthy_store_has_no_problem(shell: Shell, tmp_path: Path) -> None:
    put_file(shell, tmp_path, "note.txt", "hello")
    assert shell("file", "check") == "Every file has its content, and every object belongs to a file.\n"
    assert shell.json("file", "check", "--content") == []


def test_missing_damaged_and_orphaned_content_is_reported_and_repaired(shell: Shell, tmp_path: Path) -> None:
    lost, lost_content = put_file(shell, tmp_path, "lost.txt", "lost")
    cut, cut_content = put_file(shell, tmp_path, "cut.txt", "complete")
    changed, changed_content = put_file(shell, tmp_path, "changed.txt", "before")
    put_file(shell, tmp_path, "kept.txt", "kept")
    lost_content.unlink()
    cut_content.write_text("comp")
    changed_content.write_text("behind")  # the same size
    orphan, young = lost_content.with_name("orphan"), lost_content.with_name("young")
    for path in (orphan, young):
        path.write_text("nobody knows me")
    os.utime(orphan, (time.time() - TWO_DAYS_S,) * 2)

    by_size = shell.json("file", "check", code=1)
    assert {(row["problem"], row["id"]) for row in by_size} == {
        ("missing", lost), ("damaged", cut), ("orphan", None)
    }  # fmt: skip
    by_content = shell.json("file", "check", "--content", code=1)
    assert ("damaged", changed) in {(row["problem"], row["id"]) for row in by_content}
    assert "--yes" in shell("file", "check", "--repair", code=5)
    shell("file", "check", "--repair", "--dry-run", code=1)
    assert orphan.exists()

    repaired = shell.json("file", "check", "--content", "--repair", "--yes")
    assert sorted(row["repair"] for row in repaired) == ["file deleted"] * 3 + ["object deleted"]
    assert (orphan.exists(), young.exists()) == (False, True)
    assert [row["name"] for row in shell.json("file", "list")] == ["kept.txt"]
    assert shell.json("file", "check", "--content") == []


def test_file_of_a_stored_task_is_created_again(shell: Shell, url: Secret, tmp_path: Path) -> None:
    asyncio.run(submit_note(url, "hello"))
    run_worker(url)
    [file] = shell.json("file", "list")
    (tmp_path / "store" / file["key"]).unlink()
    [problem] = shell.json("file", "check", "--repair", "--yes")
    assert (problem["problem"], problem["repair"]) == ("missing", "task runs again")
    run_worker(url)
    assert shell.json("file", "check", "--content") == []
    [again] = shell.json("file", "list")
    assert again["name"] == "note.txt"


def test_restore_of_database_and_files_of_different_moments(
    shell: Shell, url: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """The order of docs/operate/backup.md: the dump first, then the copy of the files."""
    programs = binaries.choose_psql(Settings(), None).parent
    put_file(shell, tmp_path, "uploaded.txt", "by a user")
    asyncio.run(submit_note(url, "in the dump"))
    run_worker(url)
    run_program(programs / "pg_dump", "-Fc", "-f", tmp_path / "app.dump", url.reveal())
    put_file(shell, tmp_path, "later.txt", "after the dump, before the copy of the files")
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    [lost] = [row for row in shell.json("file", "list") if row["name"] == "note.txt"]
    (tmp_path / "copy" / lost["key"]).unlink()  # an object that the copy has missed

    server, _, name = url.reveal().rpartition("/")
    restored = Secret(f"{server}/{name}_restored")
    run_program(programs / "psql", "-q", url.reveal(), "-c", f"create database {name}_restored")
    try:
        run_program(
            programs / "pg_restore", "--exit-on-error", "-d", restored.reveal(),
            tmp_path / "app.dump",
        )  # fmt: skip
        monkeypatch.setenv("HOLDFAST_STORAGE_URL", str(tmp_path / "copy"))
        shell = Shell(restored, capsys)
        [problem] = shell.json("file", "check", "--content", "--repair", "--yes")
        assert (problem["problem"], problem["name"]) == ("missing", "note.txt")
        run_worker(restored)
        assert shell.json("file", "check", "--content") == []
        assert {row["name"] for row in shell.json("file", "list")} == {"uploaded.txt", "note.txt"}
        for path in (tmp_path / "copy").rglob("*"):
            os.utime(path, (time.time() - TWO_DAYS_S,) * 2)
        orphans = shell.json("file", "check", "--repair", "--yes")
        assert [row["problem"] for row in orphans].count("orphan") >= 1  # of later.txt
        assert shell.json("file", "check") == []
    finally:
        run_program(
            programs / "psql", "-q", url.reveal(), "-c", f"drop database {name}_restored with (force)"
        )
