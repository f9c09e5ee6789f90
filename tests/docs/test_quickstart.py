"""The quickstart as it is printed, with the wheel in an empty environment and the embedded PostgreSQL."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from terminal import Terminal
from wheel_environments import build_wheel, create_environment

from holdfast.settings import Secret

PAGE = Path(__file__).parents[2] / "docs" / "quickstart.md"
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
API_PORT = "8700"


@dataclass(frozen=True)
class Block:
    language: str
    title: str
    text: str


def read_blocks() -> dict[str, list[Block]]:
    """Return the code blocks of each section, by the words of its heading."""
    sections: dict[str, list[Block]] = {}
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        heading = section.partition("\n")[0].partition(". ")[2]
        sections[heading] = [Block(*match.groups(default="")) for match in BLOCK.finditer(section)]
    return sections


def to_pattern(text: str, port: str) -> Iterator[str]:
    """Turn expected output into a pattern for each line. An ellipsis stands for anything."""
    for line in text.replace(API_PORT, port).strip("\n").splitlines():
        yield re.escape(line).replace("…", ".+")


@pytest.mark.timeout(600)
def test_the_quickstart_works_as_printed(url: Secret, tmp_path: Path) -> None:
    sections = read_blocks()
    install = sections["Install"][0].text
    assert "pip install 'holdfast[dev]'" in install
    environment = create_environment(build_wheel(tmp_path / "dist"), "dev", tmp_path)
    folder = tmp_path / "first"
    folder.mkdir()
    (folder / ".venv").symlink_to(environment)
    for block in sections["Write a task"]:
        (folder / block.title).write_text(block.text)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    variables = {
        "PATH": f"{environment / 'bin'}:{os.defpath}",
        "HOME": str(folder),
        "HOLDFAST_API_PORT": port,
    }

    def run(text: str, **more: str) -> str:
        done = subprocess.run(
            ["bash", "-e", "-c", text],
            cwd=folder,
            env={**variables, **more},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    start, started = sections["Start everything"]
    dev = Terminal(
        *start.text.split()[1:],
        environ=variables,
        folder=folder,
        program=str(environment / "bin" / "holdfast"),
    )
    try:
        for pattern in to_pattern(started.text, port):
            dev.wait_for_text(pattern, within=180)
        submit, submitted = sections["Submit a job"]
        output = run(submit.text)
        for pattern, line in zip(to_pattern(submitted.text, port), output.splitlines(), strict=True):
            assert re.fullmatch(pattern, line), output
        slow, killed = sections["Kill the worker"]
        job = run(slow.text).strip()
        assert "count_words" in run(f"holdfast job show {job[-8:]}")
        dev.wait_for_text("● count_words")
        before = len(dev.text)
        dev.press("k")
        for pattern in to_pattern(killed.text, port):
            dev.wait_for_text(pattern, after=before, within=120)
        assert "count_words" in run("holdfast job list")
        dev.press("q")
        assert dev.wait_for_end() == 0, dev.text
    finally:
        dev.close()
        subprocess.run(
            ["holdfast", "db", "stop"], cwd=folder, env=variables, capture_output=True, check=False
        )
    (own,) = sections["Use your own PostgreSQL"]
    assert "DATABASE_URL=postgresql://user:password@localhost:5432/app" in own.text
    commands = own.text.replace("postgresql://user:password@localhost:5432/app", f"'{url.reveal()}'")
    # The server of the tests is not durable, and `doctor` says so.
    output = run(commands.replace("holdfast doctor", "holdfast doctor || true"))
    assert re.findall("^fail  ([a-z]+)", output, re.MULTILINE) == ["durability"], output
