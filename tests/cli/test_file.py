"""`holdfast file` on a real database and a folder."""

from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path

import pytest
from shell import Captured, Shell

from holdfast.engine import audit
from holdfast.settings import Secret


@pytest.fixture
def shell(url: Secret, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("HOLDFAST_STORAGE_URL", str(tmp_path / "store"))
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Shell(url, capsys)


def test_file_is_put_listed_downloaded_linked_and_deleted(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("hello")
    options = ["--owner", "ann", "--ttl", "2h", "--meta", "pages:=3", "--meta", "by=ann"]
    name = shell("file", "put", "note.txt", *options).strip()
    [listed] = shell.json("file", "list", "--owner", "ann")
    assert (listed["id"], listed["name"], listed["size"]) == (name, "note.txt", 5)
    assert listed["content_type"] == "text/plain"
    assert listed["meta"] == {"pages": 3, "by": "ann"}
    assert shell.json("file", "list", "--owner", "bob") == []
    assert "already" in shell("file", "get", name, code=4)
    shell("file", "get", name, "-o", "copy.txt")
    assert (tmp_path / "copy.txt").read_text() == "hello"
    shell("file", "get", name, "--force")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["copy.txt", "note.txt"]
    link = shell("file", "sign", name, "--expires", "10m").strip()
    assert link.startswith("http://127.0.0.1:8700/files/")
    assert "between 5 minutes and 1 hour" in shell("file", "sign", name, "--expires", "1m", code=2)
    assert "--yes" in shell("file", "delete", name, code=5)
    assert "Nothing was changed" in shell("file", "delete", name, "--dry-run")
    assert shell("file", "delete", name, "--yes") == "Deleted 1 file.\n"
    [entry] = shell.query(audit.list_audit_entries)
    assert (entry.action, entry.target) == ("artifact.delete", name)
    assert shell.json("file", "list") == []
    assert "deleted" in shell("file", "get", name, code=3)
    assert shell.json("file", "sweep")[0]["deleted"] == 1
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []
    assert "no longer stored" in shell("file", "regenerate", name, code=3)


def test_file_from_standard_input_to_standard_output(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe")))
    assert "--name" in shell("file", "put", "-", code=2)
    name = shell("file", "put", "-", "--name", "piped").strip()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(taken := io.BytesIO(), write_through=True))
    shell("file", "get", name, "-o", "-")
    assert taken.getvalue() == b"from a pipe"


def test_invalid_files_are_refused(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    assert "does not exist" in shell("file", "put", "missing", code=3)
    for name in ("..", "a/b", "x" * 300, "a\tb"):
        assert "file name" in shell("file", "put", "a", "--name", name, code=2)
    assert "not the id of a file" in shell("file", "get", "nonsense", code=2)
    assert "does not exist" in shell("file", "get", "00000000-0000-0000-0000-000000000000", code=3)
    assert shell.json("file", "list") == []


def test_quota_and_retention(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(600))
    shell("file", "quota", "ann", "--bytes", "1k", "--files", "5")
    [usage] = shell.json("file", "quota", "ann")
    assert (usage["bytes"], usage["operations"]["limit"]) == ({"used": 0, "limit": 1000}, None)
    shell("file", "quota", "ann", "--operations", "9")
    [usage] = shell.json("file", "quota", "ann")
    assert [usage[name]["limit"] for name in ("bytes", "files", "operations")] == [1000, 5, 9]
    shell("file", "put", "a", "--owner", "ann")
    assert "600 of 1000 used" in shell("file", "put", "a", "--owner", "ann", code=4)
    assert shell("file", "retention", "7d") == "All files are kept for 7d from now on.\n"
    shell("file", "put", "a", "--owner", "bob")
    kept = {each["owner"]: each["expires_at"] for each in shell.json("file", "list")}
    assert kept["ann"] is None
    assert kept["bob"] is not None
    actions = [entry.action for entry in shell.query(audit.list_audit_entries)]
    assert actions == ["artifact.retention", "quota.put", "quota.put"]


def test_sweep_deletes_orphaned_objects(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    shell("file", "put", "a")
    for name, age in (("old", 2 * 86400), ("new", 0)):
        path = tmp_path / "store" / "x" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
        os.utime(path, (time.time() - age,) * 2)
    assert shell.json("file", "sweep", "--orphans", "--dry-run") == [{"orphans": 1}]
    assert shell.json("file", "sweep", "--orphans", "--yes")[0]["orphans"] == 1
    left = sorted(path.name for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert left == ["a", "new"]
