"""The house rules that linters do not know: sizes, where SQL and the environment may be read, lock files.

Exit 1 and one line for each breach. The rules are in CONTRIBUTING.md; a rule that is not here is a wish.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "holdfast"
FILE_LINES, TEST_LINES, FUNCTION_LINES, SHORT, SHARE = 400, 600, 60, 25, 0.9
TEMPLATE_LINE_CHARS = 120
NAMES = {"utils", "helpers", "common", "base", "misc", "core", "manager", "handler", "info", "data"}
SQL = re.compile(
    r"^\s*(select\s.+\sfrom\s|insert\s+into\s|update\s+\S+\s+set\s|delete\s+from\s"
    r"|create\s+(table|function|schema|role|index)\s|alter\s+table\s|drop\s+(table|schema|database)\s|truncate\s)",
    re.IGNORECASE | re.DOTALL,
)
MACHINE = re.compile(r"/(work|farm|root)/|/tmp/[a-z]+/")
HOST = re.compile(r"https?://[^/\s\"']+")


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [path for name in listed.stdout.splitlines() if (path := ROOT / name).is_file()]


def sizes() -> Iterator[str]:
    for path in tracked(
        "src/**.py", "src/**.sql", "tests/**.py", "scripts/*", "bench/**.py", "examples/**.py"
    ):
        limit = TEST_LINES if "tests" in path.parts else FILE_LINES
        count = len(path.read_text(encoding="utf-8").splitlines())
        if count > limit:
            yield f"{path.relative_to(ROOT)}: {count} lines, at most {limit}"


def template_line_lengths() -> Iterator[str]:
    """Find lines of HTML, JavaScript and CSS that are too long to read."""
    for path in tracked("src/**.html", "src/**.js", "src/**.css"):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if len(line) > TEMPLATE_LINE_CHARS:
                yield (
                    f"{path.relative_to(ROOT)}:{number}: {len(line)} characters, at most {TEMPLATE_LINE_CHARS}"
                )


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Name and length of each function, without its docstring."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0]
            docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            start = (first.end_lineno or 0) if docstring else node.lineno - 1
            yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", (node.end_lineno or 0) - start


def function_sizes() -> Iterator[str]:
    lengths = [entry for path in tracked("src/**.py") for entry in functions(path)]
    for name, length in lengths:
        if length > FUNCTION_LINES:
            yield f"{name}: {length} lines, at most {FUNCTION_LINES}"
    short = sum(length <= SHORT for _, length in lengths)
    if lengths and short < SHARE * len(lengths):
        yield f"only {short} of {len(lengths)} functions have at most {SHORT} lines; nine in ten must"


def names() -> Iterator[str]:
    for path in tracked("src/**"):
        if path.stem in NAMES:
            yield f"{path.relative_to(ROOT)}: name says nothing; see the glossary"


def strings(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def sql_outside_engine() -> Iterator[str]:
    for path in tracked("src/**.py"):
        if "engine" in path.parts or "systems" in path.parts:
            continue
        for line, text in strings(path):
            if SQL.match(text):
                yield f"{path.relative_to(ROOT)}:{line}: SQL outside engine/"


def environment_outside_settings() -> Iterator[str]:
    for path in tracked("src/**.py"):
        if path != SOURCE / "settings.py" and "templates" not in path.parts:  # those are users' programs
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if re.search(r"os\.(environ\b|getenv)", line) and "house: environment" not in line:
                    yield f"{path.relative_to(ROOT)}:{number}: the environment is read in settings.py only"


def places() -> Iterator[str]:
    for path in tracked("*"):
        if path.suffix in {".png", ".svg", ".ico"} or path == Path(__file__).resolve():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            if MACHINE.search(line):
                yield f"{path.relative_to(ROOT)}:{number}: names a path of one machine"
            if "requirements" in path.parts and HOST.search(line):
                yield f"{path.relative_to(ROOT)}:{number}: a lock file records no host"


RULES = (
    sizes,
    template_line_lengths,
    function_sizes,
    names,
    sql_outside_engine,
    environment_outside_settings,
    places,
)


def main() -> int:
    breaches = [breach for rule in RULES for breach in rule()]
    for breach in breaches:
        print(breach)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
