"""Plant known mistakes in copies of the sources, and fail if no test catches one of them.

A campaign that does not catch planted mistakes proves nothing. `python -m campaign.mutants` plants every
mutant of mutant_list.py, two at a time. A mutant counts as caught only when a test fails on the mutated copy
and the same test passes on a clean copy right after: a test that fails at random catches nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from campaign.mutant_list import MUTANTS, ROOT, Mutant

MAX_SECONDS_PER_MUTANT = 15 * 60
COPIED_FOLDERS = ("src", "campaign", "tests", "examples", "scripts")
COPIED_FILES = ("pyproject.toml", "README.md", "CHANGELOG.md")


@dataclass(frozen=True)
class MutantResult:
    mutant: Mutant
    caught_by: str | None
    seconds: float
    failure: str = ""  # the first failure of the test, or why the mutant does not count as caught


@contextmanager
def copy_sources() -> Generator[Path]:
    """Copy what the tests need into a temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="mutant-"))
    folder.chmod(0o755)
    try:
        for name in COPIED_FOLDERS:
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in COPIED_FILES:
            shutil.copy(ROOT / name, folder / name)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def plant_mutant(mutant: Mutant, folder: Path) -> None:
    path = folder / mutant.file
    text = path.read_text(encoding="utf-8")
    occurrences = text.count(mutant.before)
    if occurrences != 1:
        raise LookupError(f"{mutant.name}: its text occurs {occurrences} times in {mutant.file}")
    path.write_text(text.replace(mutant.before, mutant.after), encoding="utf-8")


def run_test(test: str, folder: Path, timeout_s: float) -> str | None:
    """Run a test file or a fault run on the sources in a folder. Return its first failure, or None."""
    command = (
        [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", test]
        if "/" in test
        else [sys.executable, "-m", "campaign", test, "--seed", "1", "--dose", "tiny", "--slack", "3"]
    )
    environment = {**os.environ, "PYTHONPATH": f"{folder / 'src'}:{folder}"}
    # Output goes to a file: the embedded server outlives the test and would keep a pipe open for minutes.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as file:
        process = subprocess.run(
            command, cwd=folder, env=environment, stdout=file, stderr=file, timeout=timeout_s, check=False
        )
        file.seek(0)
        output = file.read()
    if process.returncode == 0:
        return None
    failures = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    failures += read_violations(output)
    return (failures or output.splitlines()[-1:] or ["no output"])[0]


def read_violations(output: str) -> list[str]:
    """Return the violations that a fault run printed."""
    for line in output.splitlines():
        if line.startswith("{"):
            return [str(violation) for violation in json.loads(line).get("broken", [])]
    return []


def try_mutant(mutant: Mutant) -> MutantResult:
    """Plant a mutant and run its tests until one catches it."""
    started_at = time.monotonic()
    note = ""
    with copy_sources() as mutated, copy_sources() as clean:
        plant_mutant(mutant, mutated)
        for test in mutant.caught_by:
            remaining_s = MAX_SECONDS_PER_MUTANT - (time.monotonic() - started_at)
            try:
                failure = run_test(test, mutated, remaining_s)
                if failure is None:
                    continue
                clean_failure = run_test(test, clean, remaining_s)
            except subprocess.TimeoutExpired:
                note = f"{test} took longer than {MAX_SECONDS_PER_MUTANT} s"
                break
            if clean_failure is None:
                return MutantResult(mutant, test, time.monotonic() - started_at, failure)
            note = f"{test} also fails on clean sources: {clean_failure}"
    return MutantResult(mutant, None, time.monotonic() - started_at, note)


def main() -> int:
    parser = argparse.ArgumentParser(prog="campaign.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="Names of the mutants to plant (default: all).")
    parser.add_argument("--parallel", type=int, default=2, help="Mutants to try in parallel (default: 2).")
    parser.add_argument(
        "--report", type=Path, default=None, help="Append a table row per mutant to this file."
    )
    options = parser.parse_args()
    unknown = set(options.names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"unknown mutants: {', '.join(sorted(unknown))}")
    chosen = [mutant for mutant in MUTANTS if not options.names or mutant.name in options.names]
    survivors = 0
    with ThreadPoolExecutor(options.parallel) as pool:
        for result in pool.map(try_mutant, chosen):
            survivors += result.caught_by is None
            print_result(result, options.report)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutants caught")
    return int(survivors > 0)


def print_result(result: MutantResult, report: Path | None) -> None:
    outcome = f"caught by {result.caught_by}" if result.caught_by else f"SURVIVED {result.failure}"
    print(f"{result.mutant.name:28} {outcome:40} {result.seconds:6.1f} s", flush=True)
    if report is not None:
        row = f"| {result.mutant.name} | {outcome} | {result.seconds:.0f} | {result.failure[:160]} |\n"
        with report.open("a", encoding="utf-8") as file:
            file.write(row)


if __name__ == "__main__":
    sys.exit(main())
