"""Tests of the wheel in empty virtual environments: commands start, and errors name a missing extra.

The wheel is built once. The environments are created with uv, whose cache makes them quick, and the commands
run in an empty folder, so that nothing of the checkout is importable.
"""

from __future__ import annotations

import os
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest
from wheel_environments import build_wheel, create_environment

ROOT = Path(__file__).resolve().parent.parent.parent
PROJECT_METADATA = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRA_NAMES = sorted(PROJECT_METADATA["optional-dependencies"])
# What the environments of a pull request cover; each other extra alone is in `make test-long`.
EXTRAS_IN_SHORT_RUN = {"", "server"}
USUAL_COMBINATIONS = ("server,files", "server,embedded", "files,testing", "server,telemetry")
MODULES_OF_EXTRAS = [
    "starlette", "uvicorn", "jwt", "jinja2", "httpx", "obstore", "typst", "pypdf", "lameenc", "playwright",
    "opentelemetry", "sentry_sdk", "pytest", "django", "cryptography", "PIL", "pypdfium2",
    "trafilatura", "rapidocr_onnxruntime", "yt_dlp", "imageio_ffmpeg", "pocketsphinx", "wordllama", "numpy",
    "espeakng_loader", "uvloop",
]  # fmt: skip

IMPORT = ("python", "-I", "-c")
USE_EMBEDDED_SERVER = (
    ("holdfast", "db", "start"), ("holdfast", "migrate"), ("holdfast", "job", "list"),
    ("holdfast", "db", "stop"),
)  # fmt: skip
# What somebody tries first with an extra.
FIRST_COMMANDS: dict[str, list[tuple[str, ...]]] = {
    "": [
        ("holdfast", "version"),
        ("holdfast", "migrate", "sql"),
        (*IMPORT, "from holdfast import Client, Ctx, Graph, Worker, schedule, task; Client()"),
    ],
    "server": [("holdfast", "openapi"), (*IMPORT, "from holdfast.server import create_app")],
    "files": [(*IMPORT, "import obstore; from holdfast import Client; Client().files.store")],
    "documents": [(*IMPORT, "import holdfast.systems.printing.pdf_renderer")],
    "speech": [(*IMPORT, "import holdfast.systems.providers.local_speech")],
    "fonts": [(*IMPORT, "import weblate_fonts")],
    "browser": [(*IMPORT, "import playwright.async_api")],
    "egress": [(*IMPORT, "import brotli; from holdfast.egress import EgressClient")],
    "bookmarks": [(*IMPORT, "import holdfast.systems.bookmarks")],
    "media": [(*IMPORT, "import holdfast.systems.media")],
    "clips": [(*IMPORT, "import holdfast.systems.clips")],
    "embeddings": [(*IMPORT, "import holdfast.systems.providers.local_embeddings")],
    "telemetry": [(*IMPORT, "import opentelemetry.trace, sentry_sdk")],
    "testing": [("pytest", "--version"), (*IMPORT, "from holdfast.testing import Holdfast")],
    "embedded": [*USE_EMBEDDED_SERVER],
    "dev": [("holdfast", "openapi"), *USE_EMBEDDED_SERVER],
    "demo": [("holdfast", "demo")],
    "fast": [(*IMPORT, "import uvloop")],
    "all": [("holdfast", "openapi"), (*IMPORT, "import holdfast.systems.bookmarks, holdfast.systems.clips")],
}  # fmt: skip

# Runs in the environment: prints the help of every command, then the modules that this imported.
PRINT_HELP_SCRIPT = """
import click, sys
from holdfast.cli.root import root_command, run_command_line

def walk(command, path):
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from walk(command.get_command(context, name), [*path, name])

assert run_command_line(["--help"]) == 0
loaded = [name for name in sys.modules if name.startswith(("holdfast.cli.", "holdfast.devtools"))]
paths = list(walk(root_command, []))
failed = [path for path in paths if run_command_line([*path, "--help"]) != 0]
heavy = [name for name in sys.argv[1:] if name in sys.modules]
print("\\n=====", len(paths), failed, heavy, loaded, file=sys.stderr)
"""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the checkout."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def run_in_environment(environment: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program of the environment in an empty folder, without the variables of this test run."""
    folder = environment.with_name("empty")
    folder.mkdir(exist_ok=True)
    program, *arguments = command
    return subprocess.run(
        [environment / "bin" / program, *arguments], cwd=folder, capture_output=True, text=True, check=False,
        env={"PATH": os.defpath, "HOME": str(folder)},
    )  # fmt: skip


@pytest.fixture(scope="session")
def bare_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and no extra."""
    return create_environment(wheel, "", tmp_path_factory.mktemp("bare"))


def test_wheel_contains_every_file_of_the_package(wheel: Path) -> None:
    package = ROOT / "src" / "holdfast"
    expected = {
        f"holdfast/{path.relative_to(package)}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    assert expected - packed == set()
    assert {Path(name).suffix for name in packed} >= {".sql", ".html", ".css", ".js"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "extras",
    [
        pytest.param(
            extras, id=extras or "bare", marks=[] if extras in EXTRAS_IN_SHORT_RUN else [pytest.mark.long]
        )
        for extras in ("", *EXTRA_NAMES, *USUAL_COMBINATIONS)
    ],
)
def test_every_command_prints_its_help(
    extras: str, wheel: Path, tmp_path: Path, bare_environment: Path
) -> None:
    environment = bare_environment if not extras else create_environment(wheel, extras, tmp_path)
    done = run_in_environment(environment, "holdfast", "--help")
    assert done.returncode == 0, done.stderr
    assert "Get started" in done.stdout
    done = run_in_environment(environment, "python", "-I", "-c", PRINT_HELP_SCRIPT, *MODULES_OF_EXTRAS)
    count, failed, heavy, loaded = _parse_summary(done.stderr)
    assert done.returncode == 0, done.stderr
    assert count > 90
    assert failed == "[]"
    assert heavy == "[]", "help must not import packages of the extras"
    # `holdfast --help` reads the table of commands and imports no command.
    assert "holdfast.cli.job'" not in loaded
    assert "devtools" not in loaded
    for extra in extras.split(","):
        for program, *arguments in FIRST_COMMANDS.get(extra, ()):
            done = run_in_environment(environment, program, *arguments)
            assert done.returncode == 0, f"{program} {arguments}: {done.stderr}"


def test_every_extra_has_a_first_command() -> None:
    assert sorted(FIRST_COMMANDS) == sorted(["", *EXTRA_NAMES])


def _parse_summary(stderr: str) -> tuple[int, str, str, str]:
    line = next(line for line in stderr.splitlines() if line.startswith("====="))
    count, rest = line.removeprefix("=====").strip().split(" ", 1)
    failed, heavy, loaded = rest.replace("] [", "]\n[").split("\n")
    return int(count), failed, heavy, loaded


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (["api"], "server"),
        (["openapi"], "server"),
        (["batch", "zip", "01a1e383-0000-7000-8000-000000000000"], "server"),
        (["dev"], "dev"),
        (["demo"], "demo"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else value,
)
def test_missing_extra_is_one_sentence_with_the_fix(
    bare_environment: Path, command: list[str], extra: str
) -> None:
    done = run_in_environment(bare_environment, "holdfast", *command)
    assert done.returncode == 1
    assert done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first.startswith("error: ")
    assert first.endswith("which is not installed.")
    assert second == f"fix: pip install 'holdfast[{extra}]'"


def test_importing_the_server_without_its_extra_names_the_fix(bare_environment: Path) -> None:
    code = "try:\n    from holdfast.server import create_app\nexcept ImportError as error:\n    print(error)"
    done = run_in_environment(bare_environment, "python", "-I", "-c", code)
    assert done.stderr == ""
    assert " needs the package " in done.stdout
    assert done.stdout.rstrip().endswith("pip install 'holdfast[server]'")
