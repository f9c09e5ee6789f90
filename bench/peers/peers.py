"""Who takes part: what is installed for each, how it is run, and how the server tells what is left."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ADAPTERS = Path(__file__).with_name("adapters")
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Entry:
    """`left` counts what is not finished, in the peer's own tables."""

    name: str
    left: str
    packages: tuple[str, ...] = ()
    node: bool = False
    jobs: int = 20_000  # how many a drain takes; less for those that need minutes
    note: str = ""

    def adapter(self) -> Path:
        return ADAPTERS / (f"{self.name}.mjs" if self.node else f"{self.name.replace('-', '_')}_.py")

    def command(self, environments: Path) -> list[str]:
        if self.name == "holdfast":
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
        if self.name == "holdfast" or place.exists():
            return
        if self.node:
            place.mkdir(parents=True)
            (place / "package.json").write_text('{"private": true}', encoding="utf-8")
            _run(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *self.packages], place)
        else:
            _run([sys.executable, "-m", "venv", str(place)], ROOT)
            _run(
                [str(place / "bin" / "python"), "-m", "pip", "install", "-q", *self.packages, "uvloop"], ROOT
            )


def _run(command: list[str], folder: Path) -> None:
    try:
        subprocess.run(command, cwd=folder, check=True)
    except (subprocess.CalledProcessError, OSError):
        shutil.rmtree(folder if folder != ROOT else Path(command[-1]), ignore_errors=True)
        raise


PEERS = {
    entry.name: entry
    for entry in (
        Entry("holdfast", "select count(*) from holdfast.tasks"),
        Entry("graphile-worker", "select count(*) from graphile_worker.jobs", ("graphile-worker",), node=True),
        Entry("pgmq", "select count(*) from pgmq.q_bench", ("pgmq", "asyncpg"),
              note="no worker of its own: no task per job, no heartbeat, no retries"),
        Entry("pg-boss", "select count(*) from pgboss.job where state < 'completed'", ("pg-boss@10",), node=True),
        Entry("pgqueuer", "select count(*) from pgqueuer", ("pgqueuer[asyncpg]",)),
        Entry("awa", "select count(*) from awa.jobs where state not in ('completed', 'failed', 'cancelled')", ("awa-pg",), jobs=10_000),
        Entry("chancy", "select count(*) from chancy_jobs where state not in ('succeeded', 'failed')", ("chancy",), jobs=10_000),
        Entry("procrastinate", "select count(*) from procrastinate_jobs", ("procrastinate", "psycopg[binary,pool]"), jobs=3_000),
    )
}  # fmt: skip
