"""The Dockerfile and compose.yaml, checked without a container engine."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from deploy_files import (
    DEPLOY,
    ROOT,
    TOOLS,
    find_command_problem,
    find_grace_seconds,
    find_image_problem,
    load_yaml,
    parse_seconds,
    run_tool,
)

sys.path.insert(0, str(ROOT / "scripts"))
from image_in_chroot import Instruction, parse_dockerfile

DOCKER = DEPLOY / "docker"
COMPOSE: dict[str, Any] = load_yaml(DOCKER / "compose.yaml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OWN_SERVICES = {
    name: service for name, service in SERVICES.items() if service["image"].startswith("holdfast:")
}
INSTRUCTIONS = parse_dockerfile((DOCKER / "Dockerfile").read_text())
PINNED_VERSION = re.compile(r"^([a-z0-9._-]+)==(\S+)", re.MULTILINE)


def list_texts(word: str) -> list[str]:
    return [instruction.text for instruction in INSTRUCTIONS if instruction.word == word]


def test_hadolint_has_no_complaint() -> None:
    checked = run_tool(TOOLS / "hadolint", "--no-color", DOCKER / "Dockerfile")
    assert (checked.returncode, checked.stdout) == (0, "")


def test_hadolint_sees_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM python\nRUN cd /tmp && apt-get install curl\n")
    checked = run_tool(TOOLS / "hadolint", "--no-color", tmp_path / "Dockerfile")
    assert checked.returncode != 0
    assert "DL3006" in checked.stdout


def test_image_is_built_in_stages_and_runs_without_root() -> None:
    stages = [text.split()[-1] for text in list_texts("FROM")]
    assert stages == ["build", "runtime", "systems", "default"]
    assert {text for text in list_texts("USER") if text != "0"} == {"10001:10001"}
    assert INSTRUCTIONS[-1] == Instruction("FROM", "runtime AS default")
    after_root = INSTRUCTIONS[INSTRUCTIONS.index(Instruction("USER", "0")) :]
    assert Instruction("USER", "10001:10001") in after_root


def test_python_packages_are_pinned_by_hash() -> None:
    installs = [text for text in list_texts("RUN") if "pip install" in text]
    assert len(installs) == 3
    assert all("--require-hashes" in text or "--no-deps dist/*.whl" in text for text in installs)


@pytest.mark.parametrize("lock", ["image.txt", "image-systems.txt", "release.txt"])
def test_image_has_the_versions_that_are_tested(lock: str) -> None:
    tested = dict(PINNED_VERSION.findall((ROOT / "requirements" / "dev.txt").read_text()))
    text = (ROOT / "requirements" / lock).read_text()
    pinned = dict(PINNED_VERSION.findall(text))
    assert len(pinned) > 10
    # The telemetry exporters of a user are not ours; everything else runs in the tests with this version.
    assert {name for name, version in pinned.items() if tested.get(name, version) != version} == set()
    assert text.count("--hash=sha256:") >= len(pinned)


@pytest.mark.parametrize("path", sorted({
    source for text in list_texts("COPY") if not text.startswith("--from") for source in text.split()[:-1]
}))  # fmt: skip
def test_copied_files_exist_and_are_sent_to_the_builder(path: str) -> None:
    path = path.replace("${LOCK}", "image.txt")
    assert (ROOT / path).exists()
    sent = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    assert f"!{path.split('/')[0]}" in sent


def test_compose_file_fits_its_schema() -> None:
    checked = run_tool(
        TOOLS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", DOCKER / "compose.yaml"
    )
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("image", sorted({service["image"] for service in SERVICES.values()}))
def test_images_have_a_version_and_no_host(image: str) -> None:
    assert find_image_problem(image) is None


def test_image_check_sees_hosts_and_moving_versions() -> None:
    assert find_image_problem("registry.example:5000/app:1") == "names a registry host"
    assert find_image_problem("ghcr.io/app/app:1") == "names a registry host"
    assert find_image_problem("postgres") == find_image_problem("a/b:latest") == "has no fixed version"


@pytest.mark.parametrize("name", sorted(OWN_SERVICES))
def test_own_services_are_confined_and_their_commands_exist(name: str) -> None:
    service = OWN_SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert find_command_problem(service["command"]) is None


def test_worker_may_finish_before_it_is_killed() -> None:
    worker = SERVICES["worker"]
    assert parse_seconds(worker["stop_grace_period"]) >= find_grace_seconds(worker["command"]) + 15


def test_secrets_come_from_outside() -> None:
    texts = (DOCKER / "compose.yaml").read_text()
    required = set(re.findall(r"\$\{(\w+):\?", texts))
    example = (DOCKER / ".env.example").read_text()
    assert required == set(re.findall(r"^(\w+)=$", example, re.MULTILINE))
    assert not re.search(
        r"(PASSWORD|KEY|SECRET\w*): [^$\s]", texts.replace("AWS_ACCESS_KEY_ID: holdfast", "")
    )


def test_mounted_files_exist() -> None:
    volumes = set(COMPOSE["volumes"])
    mounts = [mount.split(":")[0] for service in SERVICES.values() for mount in service.get("volumes", [])]
    missing = [mount for mount in mounts if mount not in volumes and not (DOCKER / mount).exists()]
    assert mounts
    assert missing == []
