"""`holdfast api` and `holdfast worker` as processes over two shards: jobs, files and links of both."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from shard_databases import create_shard_databases

from holdfast import shard_of
from holdfast.client import shard_routing
from holdfast.settings import Secret, Settings
from holdfast.testing import wait_until

pytestmark = pytest.mark.timeout(300)
START_TIMEOUT = timedelta(seconds=120)  # processes start slowly on a busy machine
APPLICATION = """
from holdfast import Ctx, task


@task(queue="files")
async def save_text(ctx: Ctx, text: str) -> str:
    await ctx.save("text.txt", text.encode())
    return text
"""


@contextmanager
def run_process(log: Path, environ: dict[str, str], *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *arguments], env=environ, stdout=out, stderr=out
        )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


async def test_jobs_and_files_of_both_shards_are_served(
    server_url: Secret, template: str, settings: Settings, tmp_path: Path
) -> None:
    urls = await create_shard_databases(server_url, template, settings, [1, 2])
    (tmp_path / "app.py").write_text(APPLICATION)
    environ = {name: value for name, value in os.environ.items() if "DATABASE_URL" not in name} | {
        "HOLDFAST_SHARDS": ",".join(f"{number}={url}" for number, url in urls.items()),
        "HOLDFAST_SERVICE_KEY": "hunter2hunter2",
        "HOLDFAST_HOME": str(tmp_path),
    }
    log = tmp_path / "api.log"
    with (
        run_process(tmp_path / "worker.log", environ, "worker", str(tmp_path / "app.py")),
        run_process(log, environ, "api", "--port", "0"),
    ):

        def find_address() -> re.Match[str] | None:
            return re.search(r"url=(http\S+)", log.read_text())

        base = (await wait_until(find_address, within=START_TIMEOUT, what="the address"))[1]
        headers = {"authorization": "Bearer hunter2hunter2"}
        async with httpx.AsyncClient(base_url=base, headers=headers, timeout=60) as api:
            for number in (1, 2):
                await check_file_of_shard(api, number)
            listed = (await api.get("/api/artifacts", params={"owner": find_owner(2)})).json()
            assert [row["shard"] for row in listed["artifacts"]] == [2]
            assert (await api.get("/readyz")).json()["missing_shards"] == []


def find_owner(number: int) -> str:
    names = (f"owner {number}" for number in range(1000))
    return next(name for name in names if shard_routing.choose_shard(f"owner:{name}", (1, 2)) == number)


async def check_file_of_shard(api: httpx.AsyncClient, number: int) -> None:
    text = f"of shard {number}"
    job = {"type": "save_text", "queue": "files", "args": {"text": text}, "owner": find_owner(number)}
    job_id = (await api.post("/api/jobs", json=job)).json()["id"]
    assert shard_of(job_id) == number

    async def has_succeeded() -> bool:
        return bool((await api.get(f"/api/jobs/{job_id}")).json()["status"] == "succeeded")

    await wait_until(has_succeeded, within=START_TIMEOUT, what="the job")
    [file] = (await api.get(f"/api/jobs/{job_id}/artifacts")).json()["artifacts"]
    assert shard_of(file["id"]) == number
    content = await api.get(f"/api/artifacts/{file['id']}", follow_redirects=True)
    assert content.text == text
    link = (await api.get(f"/api/artifacts/{file['id']}/link")).json()["url"]
    without_key = await api.get(link, headers={"authorization": ""})
    assert without_key.text == text
    assert (await api.get(f"/api/jobs/{job_id}/zip")).status_code == 200
    assert (await api.delete(f"/api/artifacts/{file['id']}")).status_code in (200, 204)
    assert (await api.get(f"/api/artifacts/{file['id']}")).status_code == 410
    again = {**job, "key": "kept"}
    kept = (await api.post("/api/jobs", json=again)).json()["id"]

    async def has_kept() -> bool:
        return bool((await api.get(f"/api/jobs/{kept}")).json()["status"] == "succeeded")

    await wait_until(has_kept, within=START_TIMEOUT, what="the second job")
