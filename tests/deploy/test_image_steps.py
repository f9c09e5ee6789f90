"""The steps of the Dockerfile, run in a debootstrap folder, and the result run as a container would run it.

The root file system is read-only, the user is 10001 and /tmp and the home are in memory.
Needs root, debootstrap and a package index; it takes minutes.
"""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import shlex
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from deploy_files import DEPLOY, ROOT

from holdfast import Client
from holdfast.settings import Secret

pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="chroot needs root"),
    pytest.mark.timeout(1500),
]

# What `docker run --read-only --tmpfs /tmp --tmpfs /var/lib/holdfast` does, as far as a chroot can.
RUN_SCRIPT = """
mount --bind "$0" "$0"
mount --bind "$1" "$0/app"
mount -t proc proc "$0/proc"
mount --rbind /dev "$0/dev"
mount -t tmpfs -o mode=1777 tmpfs "$0/tmp"
mount -t tmpfs -o uid=10001,gid=10001,mode=0750 tmpfs "$0/var/lib/holdfast"
mount -o remount,ro,bind "$0"
exec /usr/sbin/chroot --userspec=10001:10001 "$0" /bin/sh -c "cd /app && exec $2"
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("image")
    built = subprocess.run(
        [sys.executable, ROOT / "scripts" / "image_in_chroot.py", folder],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr[-3000:]
    yield json.loads(built.stdout.splitlines()[-1])
    subprocess.run(["rm", "-rf", "--one-file-system", folder], check=False)


def run_in_image(
    image: dict[str, Any], *command: str, **variables: str
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    return subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-ec", RUN_SCRIPT,
         image["folder"], DEPLOY / "docker" / "app", shlex.join(command)],
        env={**image["env"], **variables}, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def test_program_starts_without_root_on_a_read_only_system(image: dict[str, Any]) -> None:
    assert run_in_image(image, "id", "-u").stdout.strip() == "10001"
    refused = run_in_image(image, "touch", "/opt/holdfast/x", "/app/x", "/etc/x")
    assert refused.stderr.count("Read-only file system") + refused.stderr.count("Permission denied") == 3
    shown = run_in_image(image, "holdfast", "version")
    assert shown.returncode == 0, shown.stderr
    probe = run_in_image(image, *json.loads(image["HEALTHCHECK"].partition("CMD ")[2]))
    assert (probe.returncode, probe.stdout) == (0, ""), probe.stderr


def test_tools_of_the_build_are_not_in_the_image(image: dict[str, Any]) -> None:
    programs = {path.name for path in (Path(image["folder"]) / "opt/holdfast/bin").iterdir()}
    assert "holdfast" in programs
    assert not programs & {"pip", "uv", "hatchling", "cyclonedx-py"}


def test_image_describes_its_packages(image: dict[str, Any]) -> None:
    text = (Path(image["folder"]) / "opt/holdfast/share/holdfast/sbom.cdx.json").read_text()
    components = {part["name"]: part["version"] for part in json.loads(text)["components"]}
    assert {"holdfast", "asyncpg", "starlette", "obstore"} <= set(components)


async def test_worker_of_the_image_runs_a_job(image: dict[str, Any], url: Secret) -> None:
    app = runpy.run_path(str(DEPLOY / "docker" / "app" / "tasks.py"))
    async with Client(url.reveal()) as client:
        job = await client.submit(app["count_words"]("to be or not to be"))
        worker = await asyncio.to_thread(
            run_in_image, image, "holdfast", "worker", "tasks", "--queues", "words", "--drain",
            DATABASE_URL=url.reveal(),
        )  # fmt: skip
        assert worker.returncode == 0, worker.stderr
        assert await job.result() == {"to": 2, "be": 2, "or": 1, "not": 1}
