"""Run the steps of deploy/docker/Dockerfile in folders made by debootstrap, where no container engine is at hand.

    sudo .venv/bin/python scripts/image_in_chroot.py FOLDER [--target runtime] [--lock image.txt]

The base image is replaced by Debian bookworm with its Python 3.11. Every stage is a copy of it below FOLDER. ARG,
ENV, WORKDIR, COPY and RUN do what they do in a build; the rest describes the image and is printed at the end as JSON.
Needs root (chroot), debootstrap and a package index.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
SUITE = "bookworm"
# How a package index is reached; an image is built with the same variables as build arguments.
PASSED_VARIABLE = re.compile(r"(?i)^(pip_|uv_|ssl_|http_proxy|https_proxy|no_proxy)")


@dataclass(frozen=True)
class Instruction:
    """One instruction of a Dockerfile, such as RUN with its command."""

    word: str
    text: str


@dataclass
class Stage:
    """One stage of the build: a folder with a root file system, and what is set for its processes."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict[str, str])
    workdir: str = "/"
    description: dict[str, str] = field(default_factory=dict[str, str])


def parse_dockerfile(text: str) -> list[Instruction]:
    """Return the instructions. Comments are dropped and continued lines are joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [Instruction(*line.split(None, 1)) for line in joined.splitlines() if line.strip()]


def expand_variables(text: str, variables: dict[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda match: variables.get(match[1], match[0]), text)


def make_base(folder: Path) -> Path:
    """Return the folder that stands for the base image, and create it when it is missing."""
    if not (folder / "usr/bin/python3").exists():
        if shutil.which("debootstrap") is None:
            subprocess.run(["apt-get", "install", "-qq", "-y", "debootstrap"], check=True, stdout=sys.stderr)
        packages = "python3,python3-venv,ca-certificates"
        with Path(f"{folder}.log").open("wb") as log:
            command = ["debootstrap", "--variant=minbase", f"--include={packages}", SUITE, str(folder)]
            subprocess.run(command, check=True, stdout=log, stderr=log)
    for name in ("/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt"):
        shutil.copy(name, folder / name[1:])
    return folder


class ImageBuild:
    """Runs the instructions of a Dockerfile up to a target stage."""

    def __init__(self, folder: Path, base: Path, arguments: dict[str, str]) -> None:
        self._folder, self._base, self._arguments = folder, base, arguments
        self._stages: dict[str, Stage] = {}

    def run(self, instructions: list[Instruction], target: str) -> Stage:
        current: Stage | None = None
        for instruction in instructions:
            if instruction.word == "FROM":
                if target in self._stages:
                    break
                current = self._start_stage(instruction.text)
            elif current is not None:
                self._run_instruction(current, instruction)
        return self._stages[target]

    def _start_stage(self, text: str) -> Stage:
        source, _, name = text.split()
        parent = self._stages.get(source)
        folder = self._folder / name
        subprocess.run(["cp", "-a", parent.folder if parent else self._base, folder], check=True)
        stage = Stage(folder)
        if parent:
            stage = Stage(folder, dict(parent.variables), parent.workdir, dict(parent.description))
        self._stages[name] = stage
        return stage

    def _run_instruction(self, stage: Stage, instruction: Instruction) -> None:
        word, text = instruction.word, expand_variables(instruction.text, stage.variables | self._arguments)
        print(f"{word} {text[:100]}", file=sys.stderr)
        match word:
            case "ARG":
                name, _, default = text.partition("=")
                self._arguments.setdefault(name, default)
            case "ENV":
                stage.variables |= dict(pair.split("=", 1) for pair in shlex.split(text))
            case "WORKDIR":
                stage.workdir = text
                (stage.folder / text[1:]).mkdir(parents=True, exist_ok=True)
            case "COPY":
                self._copy(stage, shlex.split(text))
            case "RUN":
                self._chroot(stage, text)
            case _:
                stage.description[word] = text

    def _copy(self, stage: Stage, words: list[str]) -> None:
        origin = ROOT
        if words[0].startswith("--from="):
            origin = self._stages[words.pop(0).partition("=")[2]].folder
        *sources, target = words
        place = stage.folder / str(Path(stage.workdir) / target)[1:]
        into_folder = target.endswith("/") or len(sources) > 1
        for source in sources:
            path = origin / source.lstrip("/")
            destination = place / path.name if into_folder else place
            destination.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, destination, symlinks=True, dirs_exist_ok=True,
                                ignore=shutil.ignore_patterns("__pycache__") if origin == ROOT else None)  # fmt: skip
            else:
                shutil.copy2(path, destination)

    def _chroot(self, stage: Stage, command: str) -> None:
        passed = {name: value for name, value in os.environ.items() if PASSED_VARIABLE.match(name)}
        usual = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
        devices = 'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev"'
        subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-ec",
             f'{devices} && exec chroot "$0" /bin/sh -ec "cd $1; $2"', stage.folder, stage.workdir, command],
            check=True, env=usual | passed | stage.variables,
        )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="runtime")
    parser.add_argument("--lock", default="image.txt")
    options = parser.parse_args()
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "holdfast"
    cache.mkdir(parents=True, exist_ok=True)
    options.folder.mkdir(parents=True, exist_ok=True)
    build = ImageBuild(options.folder, make_base(cache / f"image-base-{SUITE}"), {"LOCK": options.lock})
    stage = build.run(parse_dockerfile(DOCKERFILE.read_text()), options.target)
    print(json.dumps({"folder": str(stage.folder), "env": stage.variables, **stage.description}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
