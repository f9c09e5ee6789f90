"""The entries that the driver can start: ours, and those of a checkout of the public harness."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENTS_DIR = ROOT / ".bench"
OWN_FOLDER = Path(__file__).parent
# Packages of the environment of an entry, besides those that it names itself.
EXTRA_PACKAGES = {"pgmq": ("pgmq",)}
# Which SQL to run in the new database, because the server has no extension to create: the SQL of a package.
PACKAGE_SQL = {"pgmq": "pgmq"}
FIND_SQL = "from importlib.resources import files; print(*files(%r).rglob('*.sql'), sep='\\n')"


@dataclass(frozen=True)
class HarnessEntry:
    """A folder with a manifest and a program that speaks the protocol of the public harness."""

    name: str
    folder: Path

    @property
    def is_holdfast(self) -> bool:
        return self.folder == OWN_FOLDER

    @property
    def database(self) -> str:
        manifest = json.loads((self.folder / "adapter.json").read_text(encoding="utf-8"))
        return str(manifest["db_name"])

    @property
    def _environment(self) -> Path:
        return ENVIRONMENTS_DIR / f"harness-{self.name}"

    def build_command(self) -> list[str]:
        if self.is_holdfast:
            return [sys.executable, str(self.folder / "main.py")]
        if self._is_node:
            return ["node", str(self._environment / "main.js")]
        return [str(self._environment / "bin" / "python"), str(self.folder / "main.py")]

    @property
    def _is_node(self) -> bool:
        return (self.folder / "package.json").exists()

    def install_packages(self) -> None:
        """Install the packages that the entry names, unless they are installed."""
        if self.is_holdfast or self._environment.exists():
            return
        try:
            if self._is_node:  # Node looks for packages beside the program
                shutil.copytree(self.folder, self._environment)
                command = ["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"]
                subprocess.run(command, cwd=self._environment, check=True)
            else:
                project = tomllib.loads((self.folder / "pyproject.toml").read_text(encoding="utf-8"))
                packages = [*project["project"]["dependencies"], *EXTRA_PACKAGES.get(self.name, ())]
                subprocess.run([sys.executable, "-m", "venv", str(self._environment)], check=True)
                python = str(self._environment / "bin" / "python")
                subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
        except (subprocess.CalledProcessError, OSError):
            shutil.rmtree(self._environment, ignore_errors=True)
            raise

    def read_package_sql(self) -> str:
        """Return the SQL that the entry expects in its database, or nothing."""
        package = PACKAGE_SQL.get(self.name)
        if package is None:
            return ""
        command = [str(self._environment / "bin" / "python"), "-c", FIND_SQL % package]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return f"create schema if not exists {self.name};\n" + Path(output.splitlines()[0]).read_text("utf-8")


def find_entries(names: list[str], checkout: Path | None) -> list[HarnessEntry]:
    """Return the entries with these names. All but `holdfast` are folders `<name>-bench` of the checkout."""
    entries = []
    for name in names:
        folder = OWN_FOLDER if name == "holdfast" else (checkout or Path()) / f"{name}-bench"
        if not (folder / "adapter.json").exists():
            raise SystemExit(f"There is no entry {name!r} in {folder}; pass --checkout.")
        entries.append(HarnessEntry(name, folder))
    return entries
