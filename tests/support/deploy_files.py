"""The files of the folder deploy, and what several tests ask about them."""

from __future__ import annotations

import io
import re
import socket
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import yaml

from holdfast.cli.root import run_command_line

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
TOOLS = Path(sys.executable).parent


def load_yaml(path: Path) -> Any:
    """Return the document of a YAML file."""
    return yaml.safe_load(path.read_text())


def run_tool(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program and return its exit code and output."""
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)


def find_command_problem(words: list[str]) -> str | None:
    """Return what the command line of Holdfast does not know of the arguments, or None."""
    shown, problem = io.StringIO(), io.StringIO()
    with redirect_stdout(shown), redirect_stderr(problem):
        code = run_command_line([*words, "--help"])
    if code != 0:
        return problem.getvalue()
    known = set(re.findall(r"--?[a-z][a-z-]*", shown.getvalue()))
    unknown = {word for word in words if word.startswith("-")} - known
    return f"unknown options: {unknown}" if unknown else None


def find_image_problem(image: str) -> str | None:
    """Return what is wrong with the name of an image: a registry host, or a version that moves."""
    *folders, name = image.partition("@")[0].split("/")
    if folders and re.search(r"[.:]|^localhost$", folders[0]):
        return "names a registry host"
    tag = name.partition(":")[2]
    return None if tag and tag != "latest" else "has no fixed version"


def parse_seconds(text: str) -> int:
    """Return the seconds of a duration such as 45s."""
    assert text.endswith("s"), text
    return int(text[:-1])


def find_grace_seconds(words: list[str]) -> int:
    """Return the value of the option --grace of a command line."""
    return parse_seconds(words[words.index("--grace") + 1])


def find_free_port() -> int:
    """Return a TCP port of this machine that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def list_alert_rules() -> list[dict[str, Any]]:
    """Return the alert rules for Prometheus."""
    rules: list[dict[str, Any]] = load_yaml(DEPLOY / "prometheus" / "alerts.yaml")["groups"][0]["rules"]
    return rules
