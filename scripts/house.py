"""Check rules that linters do not know: sizes of files and functions, where SQL and the environment are used.

Prints one line per violation and exits with code 1 if there is one. CONTRIBUTING.md explains the rules.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE_DIR = ROOT / "src" / "holdfast"
MAX_FILE_LINES, MAX_TEST_FILE_LINES, MAX_FUNCTION_LINES = 400, 600, 60
SHORT_FUNCTION_LINES, MIN_SHARE_OF_SHORT_FUNCTIONS = 25, 0.9
MAX_TEMPLATE_LINE_CHARS = 120
FORBIDDEN_MODULE_NAMES = {
    "utils",
    "helpers",
    "common",
    "base",
    "misc",
    "core",
    "manager",
    "handler",
    "info",
    "data",
}
SQL_STATEMENT_PATTERN = re.compile(
    r"^\s*(select\s.+\sfrom\s|insert\s+into\s|update\s+\S+\s+set\s|delete\s+from\s"
    r"|create\s+(table|function|schema|role|index)\s|alter\s+table\s|drop\s+(table|schema|database)\s|truncate\s)",
    re.IGNORECASE | re.DOTALL,
)
LOCAL_PATH_PATTERN = re.compile(r"/(work|farm|root)/|/tmp/[a-z]+/")
URL_HOST_PATTERN = re.compile(r"https?://[^/\s\"']+")


def list_files(*patterns: str) -> list[Path]:
    process = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [path for name in process.stdout.splitlines() if (path := ROOT / name).is_file()]


def check_file_sizes() -> Iterator[str]:
    for path in list_files(
        "src/**.py", "src/**.sql", "tests/**.py", "scripts/*", "bench/**.py", "examples/**.py"
    ):
        limit = MAX_TEST_FILE_LINES if "tests" in path.parts else MAX_FILE_LINES
        count = len(path.read_text(encoding="utf-8").splitlines())
        if count > limit:
            yield f"{path.relative_to(ROOT)}: {count} lines; the maximum is {limit}"


def check_template_line_lengths() -> Iterator[str]:
    """Find lines of HTML, JavaScript and CSS that are too long to read."""
    for path in list_files("src/**.html", "src/**.js", "src/**.css"):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if len(line) > MAX_TEMPLATE_LINE_CHARS:
                yield (
                    f"{path.relative_to(ROOT)}:{number}: {len(line)} characters; the maximum is {MAX_TEMPLATE_LINE_CHARS}"
                )


def iterate_function_lengths(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the name and the number of lines of each function, without its docstring."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0]
            docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            start = (first.end_lineno or 0) if docstring else node.lineno - 1
            yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", (node.end_lineno or 0) - start


def check_function_sizes() -> Iterator[str]:
    lengths = [entry for path in list_files("src/**.py") for entry in iterate_function_lengths(path)]
    for name, length in lengths:
        if length > MAX_FUNCTION_LINES:
            yield f"{name}: {length} lines; the maximum is {MAX_FUNCTION_LINES}"
    short = sum(length <= SHORT_FUNCTION_LINES for _, length in lengths)
    if lengths and short < MIN_SHARE_OF_SHORT_FUNCTIONS * len(lengths):
        yield f"only {short} of {len(lengths)} functions have at most {SHORT_FUNCTION_LINES} lines; the minimum is 90 %"


def check_module_names() -> Iterator[str]:
    for path in list_files("src/**"):
        if path.stem in FORBIDDEN_MODULE_NAMES:
            yield f"{path.relative_to(ROOT)}: the module name is too general; see the glossary"


def iterate_strings(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def check_sql_outside_engine() -> Iterator[str]:
    for path in list_files("src/**.py"):
        # The template of a system of one's own is such a system.
        if "engine" in path.parts or "systems" in path.parts or "templates" in path.parts:
            continue
        for line, text in iterate_strings(path):
            if SQL_STATEMENT_PATTERN.match(text):
                yield f"{path.relative_to(ROOT)}:{line}: SQL outside engine/"


def check_environment_access() -> Iterator[str]:
    for path in list_files("src/**.py"):
        if (
            path != PACKAGE_DIR / "settings.py" and "templates" not in path.parts
        ):  # templates are programs of users
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if re.search(r"os\.(environ\b|getenv)", line) and "house: environment" not in line:
                    yield f"{path.relative_to(ROOT)}:{number}: only settings.py may read the environment"


def check_local_paths_and_hosts() -> Iterator[str]:
    for path in list_files("*"):
        if path.suffix in {".png", ".svg", ".ico"} or path == Path(__file__).resolve():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            if LOCAL_PATH_PATTERN.search(line):
                yield f"{path.relative_to(ROOT)}:{number}: names a path of a local machine"
            if "requirements" in path.parts and URL_HOST_PATTERN.search(line):
                yield f"{path.relative_to(ROOT)}:{number}: a lock file must not contain a host"


RULE_CHECKS = (
    check_file_sizes,
    check_template_line_lengths,
    check_function_sizes,
    check_module_names,
    check_sql_outside_engine,
    check_environment_access,
    check_local_paths_and_hosts,
)


def main() -> int:
    violations = [violation for rule in RULE_CHECKS for violation in rule()]
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
