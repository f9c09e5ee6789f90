"""The metadata of the package, and that the sdist builds the same wheel as the checkout."""

from __future__ import annotations

import email
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import pytest
from wheel_environments import build_wheel

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.tar.gz"))


def read_files(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def read_metadata(wheel: Path) -> Message:
    files = read_files(wheel)
    return email.message_from_bytes(next(files[name] for name in files if name.endswith("/METADATA")))


def test_the_sdist_builds_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(tmp_path, filter="data")
    assert {"README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "pyproject.toml", "PKG-INFO"} <= names
    assert not {name for name in names if name.startswith((".venv", "tests", "node_modules", ".holdfast"))}
    again = build_wheel(tmp_path / "wheel", next(tmp_path.glob("holdfast-*")))
    assert again.name == wheel.name
    first, second = read_files(wheel), read_files(again)
    assert first.keys() == second.keys()
    assert {name for name in first if first[name] != second[name]} == set()


def test_the_wheel_is_typed_and_has_a_license(wheel: Path) -> None:
    names = read_files(wheel).keys()
    assert "holdfast/py.typed" in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert not {name for name in names if "__pycache__" in name or name.endswith(".pyc")}


def test_the_metadata_are_complete(wheel: Path) -> None:
    metadata = read_metadata(wheel)
    for field in (
        "Name",
        "Version",
        "Summary",
        "License-Expression",
        "Author",
        "Requires-Python",
        "Keywords",
    ):
        assert metadata[field], field
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert len(str(metadata.get_payload())) > 1000  # the page of the package is the README
    classifiers = metadata.get_all("Classifier") or []
    assert "Typing :: Typed" in classifiers
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert sorted(metadata.get_all("Provides-Extra") or []) == sorted(project["optional-dependencies"])


def test_all_has_every_extra_but_testing() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    def expand(name: str) -> set[str]:
        names = {name}
        for requirement in extras[name]:
            if requirement.startswith("holdfast["):
                inner = requirement.removeprefix("holdfast[").removesuffix("]")
                names |= {each for part in inner.split(",") for each in expand(part)}
        return names

    assert expand("all") == set(extras) - {"testing"}
