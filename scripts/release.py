"""Build a release into dist/: wheel, sdist, list of packages (SBOM), documentation, checksums. `make release` runs it.

    .venv/bin/python scripts/release.py [--folder dist] [--no-docs]

Each file is checked: the wheel is installed with the pinned requirements into an empty environment, and its command
runs there; the sdist builds the same wheel. Signing is left to the release workflow.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = Path(sys.executable).parent
RELEASE_VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")


class ReleaseError(Exception):
    """A check of the release failed."""


def run(*command: str | Path, folder: Path = ROOT, **variables: str) -> str:
    """Run a program and return its output. Raise ReleaseError with the end of its output if it fails."""
    process = subprocess.run(
        [str(word) for word in command], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, **variables},
    )  # fmt: skip
    if process.returncode != 0:
        raise ReleaseError(f"{command[0]} failed:\n{(process.stdout + process.stderr)[-2000:]}")
    return process.stdout


def read_version() -> str:
    text = (ROOT / "src" / "holdfast" / "version.py").read_text()
    match = re.search(r'__version__ = "([^"]+)"', text)
    if match is None:
        raise ReleaseError("src/holdfast/version.py has no __version__")
    return match[1]


def check_changelog(version: str) -> None:
    """Refuse a version that the changelog does not describe. Development versions need no entry."""
    if not RELEASE_VERSION.fullmatch(version):
        print(
            f"{version} is not a version to publish: set src/holdfast/version.py before you do",
            file=sys.stderr,
        )
        return
    if not re.search(rf"^## {re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE):
        raise ReleaseError(f"CHANGELOG.md has no section {version}")


def build_packages(folder: Path) -> tuple[Path, Path]:
    """Build wheel and sdist with the time of the commit, so that the same commit gives the same bytes."""
    epoch = run("git", "log", "-1", "--format=%ct").strip()
    for kind in ("--sdist", "--wheel"):
        run(
            TOOLS / "uv", "build", "-q", kind, "--no-build-isolation", "--python", sys.executable, "--out-dir", folder, ROOT,
            SOURCE_DATE_EPOCH=epoch,
        )  # fmt: skip
    (folder / ".gitignore").unlink(missing_ok=True)  # uv writes it; it is no part of a release
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def check_sdist(sdist: Path, wheel: Path) -> None:
    """Build a wheel from the sdist alone and compare its files with those of the wheel."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        [source] = folder.iterdir()
        run(
            TOOLS / "uv", "build", "-q", "--wheel", "--no-build-isolation", "--python", sys.executable,
            "--out-dir", folder / "built", source,
        )  # fmt: skip
        [rebuilt] = (folder / "built").glob("*.whl")
        if list_contents(rebuilt) != list_contents(wheel):
            raise ReleaseError("the sdist builds another wheel")


def list_contents(wheel: Path) -> dict[str, int]:
    """Return the checksums of the files of a wheel, without the list of files itself."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            part.filename: part.CRC for part in archive.infolist() if not part.filename.endswith("RECORD")
        }


def check_wheel(wheel: Path, version: str, sbom: Path) -> None:
    """Install the wheel into an empty environment, run its command, and write the list of packages."""
    with tempfile.TemporaryDirectory() as name:
        environment, empty = Path(name) / "venv", Path(name) / "empty"
        empty.mkdir()
        python = environment / "bin" / "python"
        run(TOOLS / "uv", "venv", "-q", "--python", sys.executable, environment)
        run(
            TOOLS / "uv",
            "pip",
            "install",
            "-q",
            "--python",
            python,
            "--require-hashes",
            "-r",
            ROOT / "requirements" / "image.txt",
        )
        run(TOOLS / "uv", "pip", "install", "-q", "--python", python, "--no-deps", wheel)
        shown = run(environment / "bin" / "holdfast", "--version", folder=empty)
        if version not in shown:
            raise ReleaseError(f"the installed command shows {shown!r} instead of {version}")
        run(environment / "bin" / "holdfast", "migrate", "sql", folder=empty)
        run(
            python,
            "-c",
            "import holdfast, holdfast.server, holdfast.systems, holdfast.testing.polling",
            folder=empty,
        )
        run(
            TOOLS / "cyclonedx-py", "environment", "--output-reproducible", "--of", "JSON", "-o", sbom, python
        )
    names = {part["name"] for part in json.loads(sbom.read_text())["components"]}
    if not {"holdfast", "asyncpg", "starlette"} <= names:
        raise ReleaseError(f"the list of packages is not complete: {sorted(names)}")


def build_docs(archive: Path) -> None:
    """Build the documentation site and pack it."""
    run(TOOLS / "mkdocs", "build", "--strict", "-q", NO_MKDOCS_2_WARNING="1")
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(ROOT / "build" / "site", arcname=archive.name.removesuffix(".tar.gz"))


def write_checksums(folder: Path) -> None:
    files = sorted(path for path in folder.iterdir() if path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / "SHA256SUMS").write_text("".join(lines))


def build_release(folder: Path, *, docs: bool) -> None:
    version = read_version()
    check_changelog(version)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    wheel, sdist = build_packages(folder)
    check_sdist(sdist, wheel)
    check_wheel(wheel, version, folder / f"holdfast-{version}.cdx.json")
    if docs:
        build_docs(folder / f"holdfast-{version}-docs.tar.gz")
    write_checksums(folder)
    for path in sorted(folder.iterdir()):
        print(f"{path.stat().st_size:>10,}  {path}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=ROOT / "dist")
    parser.add_argument("--no-docs", action="store_true")
    options = parser.parse_args()
    try:
        build_release(options.folder, docs=not options.no_docs)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
