"""Store measurements between runs, so that you can measure one part or one peer again without the others."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from bench.peers.peers import PEERS, ROOT

MeasurementValue = float | str
Measurements = dict[str, MeasurementValue]


@dataclass(frozen=True)
class RunStamp:
    """Date, commit, load, machine and server of a run. Measurements with equal stamps are from one run."""

    when: str
    commit: str
    load: float
    machine: str
    server: str

    def __str__(self) -> str:
        return (
            f"{self.when}. {self.machine}. {self.server}. Commit {self.commit}."
            f" Load before it began: {self.load:.1f}."
        )


@dataclass
class PeerResult:
    """The measurements of one peer in one part. `missing_reason` says why some are missing."""

    stamp: RunStamp
    measurements: Measurements = field(default_factory=dict)
    missing_reason: str = ""
    seconds: float = 0.0  # duration of the measurement


ResultsByPart = dict[str, dict[str, PeerResult]]  # by part, then by peer


def create_stamp(server: str, commit: str) -> RunStamp:
    return RunStamp(
        when=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        commit=commit,
        load=os.getloadavg()[0],
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores,"
        f" Python {platform.python_version()}",
        server=server,
    )


def read_commit_hash() -> str:
    process = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return process.stdout.strip() or "unknown"


def load_results(path: Path) -> ResultsByPart:
    if not path.exists():
        return {}
    stored = json.loads(path.read_text(encoding="utf-8"))
    return {
        part: {
            name: PeerResult(**{**result, "stamp": RunStamp(**result["stamp"])})
            for name, result in peers.items()
        }
        for part, peers in stored.items()
    }


def save_results(path: Path, results: ResultsByPart) -> None:
    """Replace the file atomically. Called after each peer, because a run may be interrupted."""
    stored = {
        part: {name: asdict(result) for name, result in peers.items()} for part, peers in results.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(stored, indent=1), encoding="utf-8")
    temporary.replace(path)


def replace_result(results: ResultsByPart, part: str, name: str, result: PeerResult) -> None:
    """Replace the result of a peer in a part. Peers keep the order of `PEERS`."""
    peers = {**results.get(part, {}), name: result}
    results[part] = {peer: peers[peer] for peer in PEERS if peer in peers}
